// Package devcluster runs a complete remuda cluster on one machine: real
// Consul, real Nomad with the device plugin and simulated GPUs, a real
// nomad-autoscaler, the controller, the gateway and one model. Everything it starts lives under
// one data directory and is gone when Run returns; what a killed run left
// behind is removed by the next one with the same directory.
package devcluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	deviceplugin "remuda/device-plugin"
)

// Engines that the demo model can run on.
const (
	EngineSim    = "sim"
	EngineOllama = "ollama"
)

// maxGPUs is as many as the largest common server has.
const maxGPUs = 16

// Options say what to run.
type Options struct {
	// GPUs is how many GPUs the node simulates, 1 to 16.
	GPUs int
	// Seats is how many seats each of them offers, 1 to 64.
	Seats int
	// Nodes is how many Nomad clients run, each with GPUs of its own, 1 to 8.
	Nodes int
	// Controllers is how many servers the controller has: 1, 3 or 5.
	Controllers int
	// Gateways is how many gateways run, 1 to 4.
	Gateways int
	// Autoscalers is how many nomad-autoscalers run, 1 or 2.
	Autoscalers int
	// Settings are HCL texts that are merged into the config files of daemons: of all
	// "controller"s, "gateway"s, "nomad-client"s and "autoscaler"s, of one of them
	// ("controller-1", "controller-2", …), or of "nomad-server".
	Settings map[string][]string
	// Engine is EngineSim or EngineOllama.
	Engine string
	// Single runs one engine on EngineSim instead of a failover pair.
	Single bool
	// Model is a model file to apply in place of the demo model's.
	Model string
	// GGUF is a model file for EngineOllama; empty makes a tiny random one.
	GGUF string
	// NoAutoscaler leaves nomad-autoscaler out.
	NoAutoscaler bool
	// Policy is what scales the models: one of Policies, or a file of policies for
	// nomad-autoscaler.
	Policy string
	// DataDir holds everything; empty means the first free one of
	// $XDG_STATE_HOME/remuda/dev, dev-2, dev-3 and so on.
	DataDir string
	// Releases is the site from which tools that the machine does not have are downloaded, in the layout
	// of ReleasesURL; empty downloads nothing. ReleasesKey is a file with the PGP key that signs them,
	// armored; empty is HashiCorp's.
	Releases    string
	ReleasesKey string
	// Out is where progress is printed.
	Out io.Writer
	// Remuda, Device and Autoscaler are the binaries to run; empty means this program and
	// the remuda-device and remuda-autoscaler beside it.
	Remuda     string
	Device     string
	Autoscaler string
}

// DefaultOptions fits a laptop.
func DefaultOptions() Options {
	// A failover pair takes a GPU. With the third, two replicas leave room for a rollout.
	return Options{GPUs: 3, Seats: deviceplugin.DefaultSeats, Nodes: 1, Controllers: 1, Gateways: 1, Autoscalers: 1, Engine: EngineSim, Policy: DefaultPolicy, Releases: ReleasesURL, Out: os.Stdout}
}

func (o *Options) validate() error {
	var errs []error
	if o.GPUs < 1 || o.GPUs > maxGPUs {
		errs = append(errs, fmt.Errorf("-gpus is %d: must be 1 to %d", o.GPUs, maxGPUs))
	}
	if o.Seats < 1 || o.Seats > deviceplugin.MaxSeats {
		errs = append(errs, fmt.Errorf("-seats is %d: must be 1 to %d", o.Seats, deviceplugin.MaxSeats))
	}
	between := func(flag string, n, most int) {
		if n < 1 || n > most {
			errs = append(errs, fmt.Errorf("%s is %d: must be 1 to %d", flag, n, most))
		}
	}
	between("-nodes", o.Nodes, 8)
	between("-gateways", o.Gateways, 4)
	between("-autoscalers", o.Autoscalers, 2)
	if o.Controllers != 1 && o.Controllers != 3 && o.Controllers != 5 {
		errs = append(errs, fmt.Errorf("-controllers is %d: must be 1, 3 or 5", o.Controllers))
	}
	for name := range o.Settings {
		if !slices.Contains(o.configurable(), name) {
			errs = append(errs, fmt.Errorf("-set names the daemon %q: must be one of %s", name, strings.Join(o.configurable(), ", ")))
		}
	}
	if o.Engine != EngineSim && o.Engine != EngineOllama {
		errs = append(errs, fmt.Errorf("-engine is %q: must be %s or %s", o.Engine, EngineSim, EngineOllama))
	}
	if o.GGUF != "" && o.Engine != EngineOllama {
		errs = append(errs, fmt.Errorf("-gguf needs -engine %s", EngineOllama))
	}
	if o.Single && o.Engine != EngineSim {
		errs = append(errs, fmt.Errorf("-single needs -engine %s: there is no pair of the others", EngineSim))
	}
	if o.Model != "" && (o.Single || o.Engine != EngineSim) {
		errs = append(errs, errors.New("-model goes with neither -engine nor -single: they are about the demo model"))
	}
	if !o.NoAutoscaler && !slices.Contains(Policies(), o.Policy) {
		if _, err := os.Stat(o.Policy); err != nil {
			errs = append(errs, fmt.Errorf("-policy is %q: must be %s, or a file of policies for nomad-autoscaler: %w", o.Policy, strings.Join(Policies(), ", "), err))
		}
	}
	return errors.Join(errs...)
}

// configurable are the names that Settings may have.
func (o *Options) configurable() []string {
	names := []string{"nomad-server"}
	for _, kind := range []struct {
		name string
		n    int
	}{{"controller", o.Controllers}, {"gateway", o.Gateways}, {"nomad-client", o.Nodes}, {"autoscaler", o.Autoscalers}} {
		names = append(names, kind.name)
		for i := range kind.n {
			names = append(names, fmt.Sprintf("%s-%d", kind.name, i+1))
		}
	}
	return names
}

// portNames are the names of the ports that the daemons need. The first ask first.
func (o Options) portNames() []string {
	names := []string{"spare", "spare-2", "nomad-http", "nomad-rpc", "nomad-serf", "consul-http", "consul-grpc", "consul-server", "consul-serf"}
	for _, kind := range []struct {
		n     int
		names []string
	}{
		{o.Gateways, []string{"gateway", "gateway-operators"}}, {o.Controllers, []string{"controller", "controller-raft"}},
		{o.Nodes, []string{"nomad-client-http", "nomad-client-rpc", "device-metrics"}}, {o.Autoscalers, []string{"autoscaler", "autoscaler-metrics"}},
	} {
		for i := range kind.n {
			for _, name := range kind.names {
				names = append(names, numbered(name, i))
			}
		}
	}
	return names
}

// resolve turns what the options leave open into paths.
func (o *Options) resolve() error {
	if o.GGUF != "" {
		path, err := checkGGUF(o.GGUF)
		if err != nil {
			return err
		}
		o.GGUF = path
	}
	if o.Remuda == "" {
		exe, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find the remuda binary: %w", err)
		}
		o.Remuda = exe
	}
	plugins := []struct {
		path *string
		name string
	}{{&o.Device, devicePlugin}, {&o.Autoscaler, autoscalerPlugin}}
	for _, p := range plugins {
		if *p.path == "" {
			*p.path = filepath.Join(filepath.Dir(o.Remuda), p.name)
		}
		if _, err := os.Stat(*p.path); err != nil {
			return fmt.Errorf("find the plugin %s: %w: build it beside %s (make build)", p.name, err, o.Remuda)
		}
	}
	return nil
}
