// Package doctor says in plain words what is wrong with a node whose GPUs Nomad
// does not offer, or offers and tasks cannot use.
//
// It looks and changes nothing. It talks to NVML only by way of the installed
// plugin's own worker process, so that it sees what the plugin sees, and a
// library that crashes or hangs is a finding and not the end of it.
package doctor

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	deviceplugin "remuda/device-plugin"
	"remuda/device-plugin/nvml"
)

// Status says how bad a finding is.
type Status string

// The statuses.
const (
	// OK: nothing is wrong.
	OK Status = "ok"
	// Note: worth knowing, and right on many nodes.
	Note Status = "note"
	// Warning: something will not work, but seats are offered and usable.
	Warning Status = "warning"
	// Problem: seats are missing or tasks on them fail.
	Problem Status = "problem"
)

// Finding is the result of one check.
type Finding struct {
	// Check is what was checked.
	Check string `json:"check"`
	// Status is how it is.
	Status Status `json:"status"`
	// Found is what was found.
	Found string `json:"found"`
	// Do is what to do about it, empty where there is nothing to do.
	Do string `json:"do,omitempty"`
}

// Config says where to look.
type Config struct {
	// Root is where /proc, /sys, /dev and the libraries are; "/" if empty.
	Root string
	// PluginDirs are the directories in which Nomad may look for plugins, in
	// the order in which they are tried. Nomad's own word comes first.
	PluginDirs []string
	// Library is the NVML library; empty for the one in the plugin's own
	// configuration, or else the one that the linker finds.
	Library string
	// GMSSocketDir is the directory of the GPU memory service's sockets; empty
	// for the one in the plugin's own configuration, or else the default.
	GMSSocketDir string
	// Version is the version that the plugin should be of.
	Version string
	// Nomad asks the node's agent. Required.
	Nomad func(ctx context.Context) (Node, error)
	// Probe takes a look at NVML by the plugin in the file at path; nil means
	// the plugin's worker.
	Probe func(ctx context.Context, path string) (nvml.Report, error)
	// PluginVersion asks the plugin in the file at path for its version; nil
	// means running it.
	PluginVersion func(ctx context.Context, path string) (string, error)
}

// Node is what Nomad says of the node.
type Node struct {
	// Version is the agent's.
	Version string
	// PluginDir is where it looks for plugins.
	PluginDir string
	// Plugins are the names of its plugin blocks.
	Plugins []string
	// Config is the config block of the plugin, as far as Nomad says.
	Config map[string]any
	// Client says that the agent runs tasks at all.
	Client bool
	// Seats are the GPU seats that it offers, and Others the devices of type
	// gpu that are no seats of ours.
	Seats  []Seat
	Others []string
}

// Seat is one seat.
type Seat struct {
	ID        string
	Reason    string // why it is unhealthy, empty if it is healthy
	Simulated bool
}

// Limits of Run: within 5 s it knows which GPU hangs and in which call, whatever else hangs. Only the sockets of
// the GPU memory service may take longer.
const (
	// patience bounds the checks of Nomad, the plugin file and NVML together: what has not answered by then
	// is a finding.
	patience = 4500 * time.Millisecond
	// nomadTimeout is how long the agent gets to answer. One that works needs some 10 ms.
	nomadTimeout = 1500 * time.Millisecond
)

// Run checks everything and returns what it found, in the order in which one
// thing depends on another.
func Run(ctx context.Context, cfg Config) []Finding {
	if cfg.Root == "" {
		cfg.Root = "/"
	}
	looking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	asking, answered := context.WithTimeout(looking, nomadTimeout)
	node, err := cfg.Nomad(asking)
	answered()
	if cfg.Library == "" {
		cfg.Library, _ = node.Config["nvml_library"].(string)
	}
	if cfg.GMSSocketDir == "" {
		dir, said := node.Config["gms_socket_dir"].(string)
		if !said {
			dir = deviceplugin.DefaultGMSSocketDir
		}
		cfg.GMSSocketDir = dir
	}
	if cfg.Probe == nil {
		cfg.Probe = func(ctx context.Context, path string) (nvml.Report, error) {
			return nvml.Probe(ctx, []string{path, "-nvml-worker", "-nvml-library", cfg.Library}, probePatience)
		}
	}
	if cfg.PluginVersion == nil {
		cfg.PluginVersion = runVersion
	}
	r := &round{cfg: cfg, ctx: looking, node: node, nodeErr: err}
	if err == nil && !node.Client {
		r.checkNomad() // Nothing on this machine counts: it is another one's agent.
		return r.findings
	}
	plugin := r.findPlugin()
	runs := plugin != ""
	probe := func() (nvml.Report, error) { return nvml.Report{}, nil }
	if plugin != "" {
		probing, stop := context.WithCancel(looking)
		if !simulated(node.Seats) {
			probe = start(func() (nvml.Report, error) { return cfg.Probe(probing, plugin) })
		}
		// The plugin's version and NVML are asked at once, so that neither takes the other's time.
		if runs = r.checkPlugin(plugin); !runs {
			stop()
		}
		defer func() { stop(); _, _ = probe() }()
	}
	if simulated(node.Seats) {
		r.add("GPUs", Note, "this node's GPUs are simulated by the plugin's simulate blocks; driver and NVML were not checked", "")
	} else {
		r.checkBus()
		r.checkDriver()
		r.checkDeviceFiles()
		r.checkLibrary()
		if !runs {
			r.add("NVML", Note, "not checked, because no plugin file can be run", "")
		} else {
			r.checkNVML(probe())
		}
	}
	r.checkNomad()
	r.ctx = ctx // the sockets have a limit of their own
	r.checkGMS()
	return r.findings
}

// start runs f in a goroutine. What it returns waits for f's results.
func start(f func() (nvml.Report, error)) func() (nvml.Report, error) {
	var report nvml.Report
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		report, err = f()
	}()
	return func() (nvml.Report, error) { <-done; return report, err }
}

// Sound says whether there is no problem among findings.
func Sound(findings []Finding) bool {
	for _, f := range findings {
		if f.Status == Problem {
			return false
		}
	}
	return true
}

// Print writes findings for people.
func Print(w io.Writer, findings []Finding) error {
	var b strings.Builder
	count := map[Status]int{}
	for _, f := range findings {
		count[f.Status]++
		fmt.Fprintf(&b, "%-8s %s: %s\n", strings.ToUpper(string(f.Status)), f.Check, f.Found)
		if f.Do != "" {
			fmt.Fprintf(&b, "         -> %s\n", f.Do)
		}
	}
	switch {
	case count[Problem] > 0:
		fmt.Fprintf(&b, "\n%d of %d checks found a problem.\n", count[Problem], len(findings))
	case count[Warning] > 0:
		fmt.Fprintf(&b, "\nNo problem found, and %d warnings.\n", count[Warning])
	default:
		b.WriteString("\nNo problem found.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// round is one run.
type round struct {
	cfg      Config
	ctx      context.Context
	node     Node
	nodeErr  error
	findings []Finding

	driver string   // the loaded driver's version, empty if none is
	uuids  []string // GPUs and MIG instances that NVML named
	probed bool     // whether NVML answered
	// nvmlErr is why NVML cannot be used on the node, empty if it can.
	nvmlErr string
}

func (r *round) add(check string, status Status, found, do string) {
	r.findings = append(r.findings, Finding{Check: check, Status: status, Found: found, Do: do})
}

func simulated(seats []Seat) bool {
	for _, s := range seats {
		if s.Simulated {
			return true
		}
	}
	return false
}
