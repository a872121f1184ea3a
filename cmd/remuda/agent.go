package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"remuda/autoscaler-plugin/plugin"
	"remuda/controller/agent"
)

func (p *program) agentVerb() verb {
	return verb{
		daemon:   true,
		synopsis: "Run the controller",
		usage:    "-config FILE | -dev [flags]",
		about: `Runs one server of the controller. The servers keep the desired state in Raft, and the leader
makes Nomad follow it. The other commands use its HTTP API. It registers in Consul as the
service remuda-controller ("service" in the consul block).

The file's nomad block is the controller's own Nomad. Each block pool "NAME" is another Nomad
or another node pool, with a price.

With -dev it is a cluster of one server on loopback, without ACLs; its state is deleted when
it stops, unless -data-dir is set. Otherwise ACLs are enabled: "remuda acl bootstrap" creates
the first token.

On SIGTERM or Ctrl-C it transfers leadership, lets requests finish, and stops.`,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			file := fs.String("config", "", "HCL `file` with the configuration")
			dev := fs.Bool("dev", false, "run one server with default settings, on loopback, without ACLs")
			var o agentOverrides
			fs.StringVar(&o.dataDir, "data-dir", "", "`directory` of the Raft log (default: from the file; with -dev a temporary one)")
			fs.StringVar(&o.http, "http", "", "`address` of the API (default: from the file, else "+agent.DefaultHTTP+")")
			fs.StringVar(&o.raft, "raft", "", "`address` for other servers (default: from the file, else "+agent.DefaultRaft+")")
			fs.StringVar(&o.nomad, "nomad", "", "`URL` of Nomad (default: from the file, else NOMAD_ADDR, else http://127.0.0.1:4646)")
			fs.StringVar(&o.consul, "consul", "", "`address` of the Consul agent (default: from the file, else CONSUL_HTTP_ADDR, else 127.0.0.1:8500)")
			fs.StringVar(&o.logLevel, "log-level", "", "`level` of the log: trace, debug, info, warn or error (default: from the file, else info)")
			return func(ctx context.Context, args []string) error {
				if err := noArgs(args); err != nil {
					return err
				}
				if (*file != "") == *dev {
					return usagef("set either -config FILE or -dev")
				}
				return p.runAgent(ctx, *file, o)
			}
		},
	}
}

// agentOverrides are the settings from flags. An empty one leaves the file's value.
type agentOverrides struct{ dataDir, http, raft, nomad, consul, logLevel string }

func (o agentOverrides) apply(cfg *agent.Config) {
	override(&cfg.DataDir, o.dataDir)
	override(&cfg.HTTP.Bind, o.http)
	override(&cfg.Raft.Bind, o.raft)
	if o.nomad != "" {
		cfg.Nomad.Address = o.nomad
		if !strings.Contains(o.nomad, "://") {
			cfg.Nomad.Address = "http://" + o.nomad
		}
	}
	override(&cfg.Consul.Address, o.consul)
	override(&cfg.LogLevel, o.logLevel)
}

// runAgent runs an agent from a file, or without one as -dev.
func (p *program) runAgent(ctx context.Context, file string, o agentOverrides) (err error) {
	cfg := agent.DevConfig()
	if file != "" {
		cfg = agent.DefaultConfig()
		// A file may omit what a flag sets.
		o.apply(&cfg)
		if cfg, err = agent.LoadFile(file, cfg); err != nil {
			return err
		}
	}
	o.apply(&cfg)
	if cfg.Logger, err = p.logger("agent", cfg.LogLevel); err != nil {
		return err
	}
	if cfg.DataDir == "" {
		if cfg.DataDir, err = os.MkdirTemp("", "remuda-agent-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(cfg.DataDir)) }()
	}
	cfg.CheckScaling = plugin.CheckPolicy
	cfg.OnListen = func(url string) { fmt.Fprintf(p.stdout, "controller listening on %s\n", url) }
	a, err := agent.New(cfg)
	if err != nil {
		return usageError{err.Error()}
	}
	return a.Run(ctx)
}
