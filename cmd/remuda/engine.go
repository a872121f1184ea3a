package main

import (
	"context"
	"flag"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"

	"remuda/controller/consul"
	deviceplugin "remuda/device-plugin"
	"remuda/internal/replica"
	"remuda/lockd/engine"
)

func (p *program) engineVerb() verb {
	return verb{
		daemon:   true,
		synopsis: "Run an inference engine behind the shim",
		usage:    "[flags] -- COMMAND [ARG…]",
		about: `Starts COMMAND (an inference server such as vLLM, Ollama or "remuda sim") as a child, waits
until it is ready, registers it in Consul as the service "remuda-engine", and keeps the
registration correct: removed before the engine drains, and removed when the engine, the shim
or the task dies. The shim and the engine always end together.

With -lock, lockd watches this process: should it die, lockd kills what is left of the engine
and removes its registration, and no engine of the same name starts before that.

With -standby warm, the engines of a failover pair go to sleep once they are initialised. The
one that lockd grants the pair's lock wakes and serves. Without -standby, a primary serves as
soon as it is ready, and a shadow sleeps until POST /v1/wake on the shim's own address
(-listen). That address also serves /live, /ready, /state, /metrics, /v1/drain, /v1/sleep and
/v1/failover, which hands over to the pair's standby.

An engine put to sleep by POST /v1/sleep is parked: until POST /v1/wake, no engine of the pair
holds GPU memory, even after restarts (-record). POST /v1/wake?gpus=UUID,UUID wakes it on other
GPUs of the task, if the engine supports it (-dialect sim).

The POST routes need "Authorization: Bearer SECRET" with the secret in $REMUDA_SHIM_SECRET, or
else in the file remuda-shim of the task's directory of secrets. In a job that the controller
registered they take the controller's own secret for the replica ($REMUDA_CONTROLLER_KEY). Where there is none, only clients of
this machine may use them.

In a job that the controller registered, the engine gets an API key that only this process and the
controller's gateways know ($REMUDA_GATEWAY_KEY): in $VLLM_API_KEY (-dialect vllm and sim) or --api-key
(sglang), unless COMMAND or the environment has a key already.`,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			cfg := engine.DefaultConfig()
			var consulAddr, group, logLevel string
			var gmsSockets []string
			memory := gmsMemory{backend: "host"}
			files := tlsFiles{prefix: "lock-tls"}
			var noConsul bool
			fs.StringVar(&cfg.Role, "role", cfg.Role, "`role` of the engine in its replica: primary (also of a single engine) or shadow")
			fs.StringVar(&group, "group", "", "`name` of the replica: <model>:<variant>:<replica id>")
			fs.StringVar(&cfg.EngineURL, "engine-url", "", "`URL` of the engine, such as http://127.0.0.1:8000")
			fs.StringVar(&cfg.Advertise, "advertise", "", "`host:port` that clients use to reach the engine (default: that of -engine-url)")
			fs.StringVar(&cfg.TLSListen, "tls-listen", "", "`host:port` at which the engine is served over TLS 1.3, for gateways with engine_tls (default: none)")
			fs.StringVar(&cfg.TLSCert, "tls-cert", "", "certificate `file` for -tls-listen, for the name engine.remuda; read again when it changes")
			fs.StringVar(&cfg.TLSKey, "tls-key", "", "key `file` for -tls-listen")
			fs.IntVar(&cfg.Slots, "slots", 0, "requests that the engine processes at once (default: as reported by the engine, else 1)")
			fs.StringVar(&cfg.Dialect, "dialect", cfg.Dialect, "the engine's `API`: vllm, sglang, ollama or sim (\"remuda sim\"; vllm also works for it, but not to move to other GPUs)")
			fs.StringVar(&cfg.ModelFile, "model-file", "", "GGUF `file` from which the ollama dialect creates the model")
			fs.Var(&cfg.Parameters, "model-parameter", "`NAME=VALUE` set on the model from -model-file, such as num_thread=1; may be repeated")
			fs.StringVar(&cfg.Lock, "lock", "", "`address` of lockd: a socket path, or tcp://host:port; \"auto\" for the socket of this node's jobs/node.nomad.hcl (default: none)")
			fs.StringVar(&cfg.Standby, "standby", cfg.Standby, "for an engine of a failover pair, its `state` while another engine may have the pair's lock: warm (initialised and asleep) or cold (not started, for engines without a sleep mode); none for a single engine")
			files.declare(fs, "-lock over TCP", "lockd's certificate")
			fs.DurationVar(&cfg.LockHeartbeat, "lock-heartbeat", cfg.LockHeartbeat, "how long this process may hang before lockd drops it; 0 for no limit")
			fs.DurationVar(&cfg.LockSessionTTL, "lock-session-ttl", cfg.LockSessionTTL, "lockd's -session-ttl, for -lock over TCP")
			fs.StringVar(&cfg.Record, "record", defaultRecord(), "`directory` of the record that outlives a crash: that the replica was put to sleep, on which GPUs it wakes, what it left in the GPU memory service; the shims of a pair share it (default: $NOMAD_ALLOC_DIR/data/remuda, else none)")
			fs.Func("gms-socket", "`socket` of the GPU memory service with which the engine shares its weights, or "+gmsAuto+" for its model's on its GPUs; may be repeated; empty for none", func(s string) error {
				if s != "" {
					gmsSockets = append(gmsSockets, s)
				}
				return nil
			})
			memory.declare(fs)
			fs.StringVar(&cfg.Listen, "listen", cfg.Listen, "`address` of the shim's own HTTP")
			fs.StringVar(&consulAddr, "consul", "", "`address` of the Consul agent in which the engine is registered (default: $"+consulAddrEnv+", else, but not in a Nomad task, 127.0.0.1:8500)")
			fs.BoolVar(&noConsul, "no-consul", false, "do not register in Consul")
			fs.DurationVar(&cfg.InitTimeout, "init-timeout", cfg.InitTimeout, "time limit for loading the model")
			fs.DurationVar(&cfg.WakeTimeout, "wake-timeout", cfg.WakeTimeout, "time limit for a wake; after it the engine ends")
			fs.DurationVar(&cfg.DrainTimeout, "drain-timeout", cfg.DrainTimeout, "time limit for running requests before a stop or sleep")
			fs.DurationVar(&cfg.DrainHold, "drain-hold", cfg.DrainHold, "how long a drained engine stays out of routing if neither a sleep nor a stop nor another drain follows")
			fs.DurationVar(&cfg.StopTimeout, "stop-timeout", cfg.StopTimeout, "time between SIGTERM and SIGKILL for the engine")
			fs.DurationVar(&cfg.HealthInterval, "health-interval", cfg.HealthInterval, "time between health checks of an active engine")
			fs.DurationVar(&cfg.HealthTimeout, "health-timeout", cfg.HealthTimeout, "time limit for one health check")
			fs.IntVar(&cfg.UnhealthyAfter, "unhealthy-after", cfg.UnhealthyAfter, "consecutive failed health checks that remove the engine from routing")
			fs.DurationVar(&cfg.HangTimeout, "hang-timeout", 0, "how long an engine may fail its health checks, or have requests and make no token, before it is ended; longer than its longest step (default: "+engine.HangTimeout(engine.StandbyWarm).String()+" with -standby warm, else "+engine.HangTimeout(engine.StandbyNone).String()+")")
			fs.DurationVar(&cfg.TTL, "ttl", cfg.TTL, "time to live of the Consul check")
			fs.BoolVar(&cfg.WatchParent, "watch-parent", os.Getenv("NOMAD_ALLOC_ID") != "", "stop when the parent process dies (default: true in a Nomad task)")
			logLevelFlag(fs, &logLevel)
			return func(ctx context.Context, args []string) error {
				if group == "" {
					return usagef("-group must be set: <model>:<variant>:<replica id>")
				}
				name, err := replica.ParseName(group)
				if err != nil {
					return usagef("-group: %v", err)
				}
				if cfg.Logger, err = p.logger("engine", logLevel); err != nil {
					return err
				}
				cfg.Name, cfg.Command = name, args
				if cfg.HangTimeout == 0 {
					cfg.HangTimeout = engine.HangTimeout(cfg.Standby)
				}
				if cfg.Secret, cfg.ControllerKey, err = engine.TaskSecret(); err != nil {
					return usageError{err.Error()}
				}
				if cfg.GatewayKey, err = engine.TaskGatewayKey(); err != nil {
					return usageError{err.Error()}
				}
				cfg.UseGPUs, cfg.SeatGPUs = engine.TaskGPUs()
				if cfg.StartWarm, err = engine.TaskStart(); err != nil {
					return usageError{err.Error()}
				}
				if cfg.Generation, err = engine.TaskGeneration(); err != nil {
					return usageError{err.Error()}
				}
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
				if cfg.Lock == lockAuto {
					dir := os.Getenv(deviceplugin.EnvGMSSocketDir)
					if dir == "" {
						return usagef("-lock is auto: $%s is not set: set gms_socket_dir of remuda-device, or name the socket", deviceplugin.EnvGMSSocketDir)
					}
					cfg.Lock = filepath.Join(dir, lockdSocket)
				}
				if cfg.LockTLS, err = files.client(); err != nil {
					return err
				}
				if dir := os.Getenv("NOMAD_ALLOC_DIR"); dir != "" {
					cfg.Logs, cfg.Task = filepath.Join(dir, "logs"), os.Getenv("NOMAD_TASK_NAME")
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

const (
	// consulAddrEnv is Consul's own variable.
	consulAddrEnv = "CONSUL_HTTP_ADDR"
	// lockAuto finds lockd's socket by what the device plugin gave the task.
	lockAuto = "auto"
	// lockdSocket is its name in the node's socket directory (jobs/node.nomad.hcl).
	lockdSocket = "lockd.sock"
)

// defaultRecord is where the tasks of one allocation share a directory.
func defaultRecord() string {
	if dir := os.Getenv("NOMAD_ALLOC_DIR"); dir != "" {
		return filepath.Join(dir, "data", "remuda")
	}
	return ""
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
