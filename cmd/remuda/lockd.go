package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"remuda/controller/consul"
	"remuda/lockd"
	"remuda/lockd/lock"
)

func (p *program) lockdVerb() verb {
	return verb{
		daemon:   true,
		synopsis: "Run the failover lock server",
		usage:    "-socket PATH -state DIR [flags]",
		about: `Runs once on a node, as a task of jobs/node.nomad.hcl. Every engine on the node holds a lock of
its own, and the engines of a failover pair compete for one more, first come, first served. A
lock belongs to the process that connected to the Unix socket. It is free again when that
process and all its descendants have ended: lockd kills what is left of a dead holder, and a
holder that has lost its connection and does not reconnect within -reconnect-window. With
-consul, it also removes the registration of a dead engine. Tokens increase with every grant,
also across crashes and reboots, through the state directory.

With -listen, holders on other machines take locks over TCP with client certificates. lockd
cannot see whether they are alive, so they have sessions: the lock is free once a holder has
been silent for -session-ttl and then -lock-delay has passed.`,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			cfg := lockd.DefaultConfig()
			var logLevel, metricsAddr, consulAddr string
			files := tlsFiles{prefix: "tls"}
			fs.StringVar(&cfg.Socket, "socket", "", "`path` of the Unix socket (required)")
			fs.StringVar(&cfg.State, "state", "", "`directory` of the state (required), made with mode 0700; it must be on the node's own disk and outlive reboots")
			fs.StringVar(&cfg.Listen, "listen", "", "TCP `address` for holders on other machines (default: none)")
			files.declare(fs, "-listen", "client certificates")
			fs.DurationVar(&cfg.Times.Reconnect, "reconnect-window", cfg.Times.Reconnect, "how long a live holder may be disconnected before it is killed")
			fs.DurationVar(&cfg.Times.SessionTTL, "session-ttl", cfg.Times.SessionTTL, "how long a remote holder may be silent before its session ends")
			fs.DurationVar(&cfg.Times.LockDelay, "lock-delay", cfg.Times.LockDelay, "how long a lock stays unavailable after the session of a remote holder ended")
			fs.StringVar(&consulAddr, "consul", "", "`address` of the node's Consul agent, from which dead engines are deregistered, and whose keys remuda/locks/<group> show the holders (default: $"+consulAddrEnv+", else none)")
			fs.StringVar(&metricsAddr, "metrics", "", "`address` for GET /metrics (default: none)")
			logLevelFlag(fs, &logLevel)
			return func(ctx context.Context, args []string) error {
				if err := noArgs(args); err != nil {
					return err
				}
				var err error
				if cfg.Logger, err = p.logger("lockd", logLevel); err != nil {
					return err
				}
				if cfg.TLS, err = files.server(); err != nil {
					return err
				}
				registry := prometheus.NewRegistry()
				registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
				cfg.Metrics = registry
				if consulAddr == "" {
					consulAddr = os.Getenv(consulAddrEnv)
				}
				if consulAddr == "" {
					cfg.Logger.Warn("no Consul agent: the registration of a dead engine stays until its check expires", "set", "-consul")
				}
				mirror, dead, err := toConsul(&cfg, consulAddr)
				if err != nil {
					return usageError{err.Error()}
				}
				if dead != nil {
					defer dead.Close()
				}
				server, err := lockd.New(cfg)
				if err != nil {
					return usageError{err.Error()}
				}
				stop, err := serveMetrics(metricsAddr, registry)
				if err != nil {
					return err
				}
				defer stop()
				var mirrored sync.WaitGroup
				defer mirrored.Wait()
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				if mirror != nil {
					mirrored.Go(func() { mirror.Run(ctx) })
				}
				return server.Run(ctx)
			}
		},
	}
}

// lockKeys is the prefix of the keys in Consul in which `remuda lockd -consul` shows the locks, one for
// each engine and each failover pair: JSON with holder, token, since and state.
const lockKeys = "remuda/locks/"

// toConsul has dead engines deregistered, and writes every change of the locks to Consul, so
// that people can watch them. It returns nil without an address.
func toConsul(cfg *lockd.Config, addr string) (*consul.Mirror, *consul.Deregistrar, error) {
	if addr == "" {
		return nil, nil, nil
	}
	dead, err := consul.NewDeregistrar(consul.Address{Addr: addr}, cfg.Logger.Named("consul"))
	if err != nil {
		return nil, nil, err
	}
	cfg.OnEnd = dead.Remove // an engine's own lock has the name of its service
	mc := consul.DefaultMirrorConfig()
	mc.Address, mc.Name, mc.Logger = consul.Address{Addr: addr}, "remuda lockd "+cfg.Socket, cfg.Logger.Named("consul")
	mirror, err := consul.NewMirror(mc)
	if err != nil {
		return nil, nil, err
	}
	cfg.OnChange = func(groups []lock.Status) {
		keys := map[string]string{}
		for _, g := range groups {
			if g.State == lock.Free {
				continue
			}
			value, err := json.Marshal(map[string]any{"holder": g.Holder, "token": g.Token, "since": g.Since, "state": g.State})
			if err == nil {
				keys[lockKeys+g.Group] = string(value)
			}
		}
		mirror.Set(keys)
	}
	return mirror, dead, nil
}

// serveMetrics serves GET /metrics at addr, nothing where addr is empty.
func serveMetrics(addr string, registry *prometheus.Registry) (stop func(), err error) {
	if addr == "" {
		return func() {}, nil
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("-metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			_ = ln.Close()
		}
	}()
	return func() { _ = srv.Close(); <-done }, nil
}
