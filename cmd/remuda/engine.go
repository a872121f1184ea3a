package main

import (
	"context"
	"flag"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"

	"remuda/controller/consul"
	"remuda/internal/replica"
	"remuda/lockd/engine"
)

func (p *program) engineVerb() verb {
	return verb{
		synopsis: "Run an inference engine behind the shim",
		usage:    "[flags] -- COMMAND [ARG…]",
		about: `Starts COMMAND (an inference server such as vLLM, Ollama or "remuda sim") as a child, waits
until it is ready, registers it in Consul as the service "remuda-engine", and keeps the
registration correct: removed before the engine drains, and removed when the engine, the shim
or the task dies. The shim and the engine always end together.

With -lock, primary and shadow go to sleep once they are initialised. The one that lockd
grants the lock wakes and serves, and ends when it loses the lock. Without -lock, a primary
serves as soon as it is ready, and a shadow sleeps until POST /v1/wake on the shim's own
address (-listen). That address also serves /live, /ready, /state, /metrics, /v1/drain and
/v1/sleep.

An engine put to sleep by POST /v1/sleep is parked: until POST /v1/wake, no engine of the pair
holds GPU memory, even after restarts (-park). POST /v1/wake?gpus=UUID,UUID wakes it on other
GPUs of the task, if the engine supports it (-dialect sim).`,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			cfg := engine.DefaultConfig()
			var consulAddr, group, logLevel, standby string
			var gmsSockets []string
			memory := gmsMemory{backend: "host"}
			files := tlsFiles{prefix: "lock-tls"}
			var noConsul bool
			fs.StringVar(&cfg.Role, "role", cfg.Role, "`role` in the failover group: primary or shadow")
			fs.StringVar(&group, "group", "", "failover `group`, which is the replica's name: <model>:<variant>:<replica id>")
			fs.StringVar(&cfg.EngineURL, "engine-url", "", "`URL` of the engine, such as http://127.0.0.1:8000")
			fs.StringVar(&cfg.Advertise, "advertise", "", "`host:port` that clients use to reach the engine (default: that of -engine-url)")
			fs.IntVar(&cfg.Slots, "slots", 0, "requests that the engine processes at once (default: as reported by the engine, else 1)")
			fs.StringVar(&cfg.Dialect, "dialect", cfg.Dialect, "the engine's `API`: vllm, ollama or sim (\"remuda sim\"; vllm also works for it, but not to move to other GPUs)")
			fs.StringVar(&cfg.ModelFile, "model-file", "", "GGUF `file` from which the ollama dialect creates the model")
			fs.Var(&cfg.Parameters, "model-parameter", "`NAME=VALUE` set on the model from -model-file, such as num_thread=1; may be repeated")
			fs.StringVar(&cfg.Lock, "lock", "", "`address` of lockd: a socket path, or tcp://host:port (default: none, a primary serves as soon as it is ready)")
			fs.StringVar(&standby, "standby", "warm", "state while waiting for -lock: `warm` (initialised and asleep) or cold (not started, for engines without a sleep mode)")
			files.declare(fs, "-lock over TCP", "lockd's certificate")
			fs.DurationVar(&cfg.LockReconnect, "lock-reconnect", cfg.LockReconnect, "how long to reconnect to lockd before the lock counts as lost")
			fs.DurationVar(&cfg.LockHeartbeat, "lock-heartbeat", cfg.LockHeartbeat, "how long this process may hang before lockd drops it; 0 for no limit")
			fs.DurationVar(&cfg.LockSessionTTL, "lock-session-ttl", cfg.LockSessionTTL, "lockd's -session-ttl, for -lock over TCP")
			fs.StringVar(&cfg.Park, "park", defaultPark(), "`file` that keeps an engine asleep across restarts, from POST /v1/sleep to POST /v1/wake; the shims of a pair share it (default: in $NOMAD_ALLOC_DIR/data, else none)")
			fs.Func("gms-socket", "`socket` of the GPU memory service with which the engine shares its weights, or "+gmsAuto+" for its model's on its GPUs; may be repeated; empty for none", func(s string) error {
				if s != "" {
					gmsSockets = append(gmsSockets, s)
				}
				return nil
			})
			memory.declare(fs)
			fs.StringVar(&cfg.Listen, "listen", cfg.Listen, "`address` of the shim's own HTTP")
			fs.StringVar(&consulAddr, "consul", "", "`address` of the Consul agent (default: CONSUL_HTTP_ADDR, else 127.0.0.1:8500)")
			fs.BoolVar(&noConsul, "no-consul", false, "do not register in Consul")
			fs.DurationVar(&cfg.InitTimeout, "init-timeout", cfg.InitTimeout, "time limit for loading the model")
			fs.DurationVar(&cfg.WakeTimeout, "wake-timeout", cfg.WakeTimeout, "time limit for a wake; after it the engine ends")
			fs.DurationVar(&cfg.DrainTimeout, "drain-timeout", cfg.DrainTimeout, "time limit for running requests before a stop or sleep")
			fs.DurationVar(&cfg.StopTimeout, "stop-timeout", cfg.StopTimeout, "time between SIGTERM and SIGKILL for the engine")
			fs.DurationVar(&cfg.HealthInterval, "health-interval", cfg.HealthInterval, "time between health checks of an active engine")
			fs.DurationVar(&cfg.HealthTimeout, "health-timeout", cfg.HealthTimeout, "time limit for one health check")
			fs.IntVar(&cfg.UnhealthyAfter, "unhealthy-after", cfg.UnhealthyAfter, "consecutive failed health checks that remove the engine from routing")
			fs.DurationVar(&cfg.HangTimeout, "hang-timeout", cfg.HangTimeout, "how long an active engine may be unhealthy before it is ended")
			fs.DurationVar(&cfg.TTL, "ttl", cfg.TTL, "time to live of the Consul check")
			fs.BoolVar(&cfg.WatchParent, "watch-parent", os.Getenv("NOMAD_ALLOC_ID") != "", "stop when the parent process dies (default: true in a Nomad task)")
			logLevelFlag(fs, &logLevel)
			return func(ctx context.Context, args []string) error {
				if group == "" {
					return usagef("-group must be set: <model>:<variant>:<replica id>")
				}
				if standby != "warm" && standby != "cold" {
					return usagef("-standby is %q: must be warm or cold", standby)
				}
				cfg.Cold = standby == "cold"
				name, err := replica.ParseName(group)
				if err != nil {
					return usagef("-group: %v", err)
				}
				if cfg.Logger, err = p.logger("engine", logLevel); err != nil {
					return err
				}
				cfg.Name, cfg.Command = name, args
				cfg.UseGPUs, cfg.SeatGPUs = engine.TaskGPUs()
				for _, s := range gmsSockets {
					sockets, err := memory.addresses(s, name.Model, group)
					if err != nil {
						return err
					}
					cfg.GMSSockets = append(cfg.GMSSockets, sockets...)
				}
				if cfg.GMSSpace, err = memory.space(); err != nil {
					return err
				}
				if !noConsul {
					cfg.Consul = &consul.Address{Addr: consulAddr}
				}
				if cfg.LockTLS, err = files.client(); err != nil {
					return err
				}
				shim, err := engine.New(cfg)
				if err != nil {
					return usageError{err.Error()}
				}
				if cfg.Lock != "" {
					if err := engine.Mark(); err != nil {
						return err
					}
				}
				return shim.Run(ctx)
			}
		},
	}
}

// defaultPark is where the tasks of one allocation share a file.
func defaultPark() string {
	if dir := os.Getenv("NOMAD_ALLOC_DIR"); dir != "" {
		return filepath.Join(dir, "data", "remuda.parked")
	}
	return ""
}

// engineGuardVerb is started by the shim, never by hand.
func (p *program) engineGuardVerb() verb {
	return verb{
		synopsis: "Internal: cleans up after a killed shim",
		about:    "Started by remuda engine.",
		setup: func(*flag.FlagSet) func(context.Context, []string) error {
			return func(context.Context, []string) error {
				return engine.RunGuard(p.stdin, p.stdout, p.stderr)
			}
		},
	}
}

// logLevelFlag declares -log-level.
func logLevelFlag(fs *flag.FlagSet, level *string) {
	fs.StringVar(level, "log-level", "info", "`level` of the log: trace, debug, info, warn or error")
}

// logger writes to standard error.
func (p *program) logger(name, level string) (hclog.Logger, error) {
	l := hclog.LevelFromString(level)
	if l == hclog.NoLevel {
		return nil, usagef("-log-level is %q: must be trace, debug, info, warn or error", level)
	}
	return hclog.New(&hclog.LoggerOptions{Name: name, Level: l, Output: p.stderr}), nil
}
