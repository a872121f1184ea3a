package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"remuda/internal/devcluster"
)

func (p *program) devVerb() verb {
	return verb{
		daemon:   true,
		synopsis: "Run a complete local cluster in the foreground",
		usage:    "[flags]",
		about: `Starts real Consul, real Nomad with the device plugin and simulated GPUs, the controller, the gateway and
nomad-autoscaler, deploys a demo model through the controller (a primary and its shadow on one GPU), lets
nomad-autoscaler scale it with its load, prints where everything is, and takes it all down on Ctrl-C. A second
Ctrl-C hurries.

nomad, consul and nomad-autoscaler are taken from PATH where they are new enough, else from .tools/bin, where
"make tools" builds them. What is missing is downloaded: HashiCorp's official release of the version that
remuda is tested with, whose signature and checksum are checked. It is kept in $XDG_CACHE_HOME/remuda. In a
checkout of remuda without a network, it is built from source, which takes minutes. Nomad and Consul are under
the Business Source License. Several clusters may run side by side.

Each start begins anew: models, pipelines, keys, tokens and usage of the run before are gone. Model files
of -engine ollama and downloaded tools stay.`,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			opts := devcluster.DefaultOptions()
			fs.IntVar(&opts.GPUs, "gpus", opts.GPUs, "`number` of simulated GPUs, 1 to 16")
			fs.IntVar(&opts.Seats, "seats", opts.Seats, "`number` of seats of each of them, 1 to 64: an engine takes one, HOT or WARM, and a pair two")
			fs.IntVar(&opts.Nodes, "nodes", opts.Nodes, "`number` of Nomad clients, each with GPUs of its own, 1 to 8")
			fs.IntVar(&opts.Controllers, "controllers", opts.Controllers, "`number` of servers of the controller: 1, 3 or 5")
			fs.IntVar(&opts.Gateways, "gateways", opts.Gateways, "`number` of gateways, 1 to 4")
			fs.Func("set", "`DAEMON=FILE`: merge the HCL settings of a file into the config of controller, gateway, nomad-server, nomad-client or autoscaler, or of one of several (controller-2). May be repeated", func(value string) error {
				name, file, ok := strings.Cut(value, "=")
				if !ok {
					return errors.New("must be DAEMON=FILE")
				}
				raw, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				if opts.Settings == nil {
					opts.Settings = map[string][]string{}
				}
				opts.Settings[name] = append(opts.Settings[name], string(raw))
				return nil
			})
			fs.StringVar(&opts.Engine, "engine", opts.Engine, "the demo model's `engine`: sim, or ollama (a real one)")
			fs.BoolVar(&opts.Single, "single", false, "run one engine of the demo model instead of a primary with its shadow")
			fs.StringVar(&opts.Model, "model", "", "model `file` to apply in place of the demo model's; its tasks find remuda and ollama on PATH and the cluster's Consul in CONSUL_HTTP_ADDR")
			fs.StringVar(&opts.GGUF, "gguf", "", "model `file` for -engine ollama (default: a tiny one with random weights)")
			fs.StringVar(&opts.Policy, "policy", opts.Policy, "what scales the models: "+strings.Join(devcluster.Policies(), ", ")+", or a `file` of policies for nomad-autoscaler")
			fs.BoolVar(&opts.NoAutoscaler, "no-autoscaler", false, "do not run nomad-autoscaler")
			fs.StringVar(&opts.Releases, "releases", opts.Releases, "`URL` of a site with HashiCorp's releases, for tools that are missing; empty downloads nothing")
			fs.StringVar(&opts.ReleasesKey, "releases-key", "", "`file` with the armored PGP key that signs the releases (default: HashiCorp's)")
			fs.StringVar(&opts.DataDir, "data-dir", "", "`directory` for everything (default: the first free one of $XDG_STATE_HOME/remuda/dev, dev-2, …)")
			return func(ctx context.Context, args []string) error {
				if err := noArgs(args); err != nil {
					return err
				}
				opts.Out = p.stdout
				cluster, err := devcluster.New(opts)
				if err != nil {
					return usageError{err.Error()}
				}
				// A closed terminal must not end the program before it has taken the cluster down.
				ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP)
				defer stop()
				return cluster.Run(ctx, secondSignal(ctx))
			}
		},
	}
}

// secondSignal is closed at the first interrupt that comes after ctx has ended.
func secondSignal(ctx context.Context) <-chan struct{} {
	hurry := make(chan struct{})
	context.AfterFunc(ctx, func() {
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
		<-signals
		close(hurry)
	})
	return hurry
}
