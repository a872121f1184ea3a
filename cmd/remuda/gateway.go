package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/hashicorp/go-hclog"

	"remuda/controller/consul"
	"remuda/controller/gateway"
)

func (p *program) gatewayVerb() verb {
	return verb{
		daemon:   true,
		synopsis: "Run the OpenAI-compatible gateway",
		usage:    "-config FILE | -dev [flags]",
		about: `Serves /v1/models, /v1/chat/completions, /v1/completions and /v1/embeddings, streams included,
on the passing engines in Consul, and /live and /ready. Operators have a port of their own with
/metrics, /live and /ready ("operator_listen" in the file). The gateway registers in Consul as
the service remuda-gateway ("service" in the file's consul block), with the operators' port as
the metadata operator_port. With "addresses"
in the file's controller block it follows the controller; models that already run are served
without it. SIGTERM or Ctrl-C lets running requests finish. SIGHUP reopens the access log and
reads the certificate again.`,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			file := fs.String("config", "", "HCL `file` with the configuration")
			dev := fs.Bool("dev", false, "use default settings, on loopback")
			listen := fs.String("listen", "", "`address` for clients (default: from the file, else 127.0.0.1:8080)")
			operators := fs.String("operator-listen", "", "`address` for operators (default: from the file, else 127.0.0.1:4752)")
			consulAddr := fs.String("consul", "", "`address` of the Consul agent (default: from the file, else CONSUL_HTTP_ADDR, else 127.0.0.1:8500)")
			controller := fs.String("controller", "", "`URL` of a controller to follow, or several separated by commas (default: from the file, else none)")
			logLevel := fs.String("log-level", "", "`level` of the log: trace, debug, info, warn or error (default: from the file, else info)")
			return func(ctx context.Context, args []string) error {
				if err := noArgs(args); err != nil {
					return err
				}
				if (*file != "") == *dev {
					return usagef("set either -config FILE or -dev")
				}
				cfg := gateway.DefaultConfig()
				var err error
				if *file != "" {
					if cfg, err = gateway.LoadFile(*file, cfg); err != nil {
						return err
					}
				}
				override(&cfg.Listen, *listen)
				override(&cfg.OperatorListen, *operators)
				override(&cfg.Consul.Address, *consulAddr)
				override(&cfg.LogLevel, *logLevel)
				if *controller != "" {
					cfg.Controller.Addresses = strings.Split(*controller, ",")
				}
				if cfg.Logger, err = p.logger("gateway", cfg.LogLevel); err != nil {
					return err
				}
				watch := consul.DefaultWatcherConfig()
				watch.Address = consul.Address{Addr: cfg.Consul.Address, Token: cfg.Consul.Token}
				watch.Logger = cfg.Logger.Named("consul")
				if cfg.Watcher, err = consul.NewWatcher(watch); err != nil {
					return usageError{err.Error()}
				}
				var announced sync.WaitGroup
				defer announced.Wait()
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				cfg.OnListen = func(clients, operators net.Addr) {
					scheme := "http"
					if cfg.TLS.Cert != "" {
						scheme = "https"
					}
					fmt.Fprintf(p.stdout, "gateway listening on %s://%s\ngateway's operator port at http://%s\n", scheme, clients, operators)
					if announcer := announceGateway(cfg, clients, operators); announcer != nil {
						announced.Go(func() { announcer.Run(ctx) })
					}
				}
				g, err := gateway.New(cfg)
				if err != nil {
					return usageError{err.Error()}
				}
				var reopening sync.WaitGroup
				defer reopening.Wait()
				ctx, end := context.WithCancel(ctx)
				defer end()
				reopening.Go(func() { reopenOnHangup(ctx, g, cfg.Logger) })
				return g.Run(ctx)
			}
		},
	}
}

// reopenOnHangup opens the access log anew at each SIGHUP, as a log rotation asks for, and reads the
// certificate again.
func reopenOnHangup(ctx context.Context, g *gateway.Gateway, log hclog.Logger) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			if err := g.Reopen(); err != nil {
				log.Error("SIGHUP: what cannot be read again stays in use", "error", err)
			}
		}
	}
}

// announceGateway returns what registers the gateway, nil where that is not
// wanted. A gateway that leaves is removed from Consul while it still drains.
func announceGateway(cfg gateway.Config, clients, operators net.Addr) *consul.Announcer {
	if cfg.Consul.Service == "" {
		return nil
	}
	a := consul.DefaultAnnouncerConfig()
	a.Address = consul.Address{Addr: cfg.Consul.Address, Token: cfg.Consul.Token}
	a.Service, a.Listen, a.CheckPath = cfg.Consul.Service, clients, "/ready"
	a.TLS = cfg.TLS.Cert != ""
	if tcp, ok := operators.(*net.TCPAddr); ok {
		a.Meta = map[string]string{"operator_port": strconv.Itoa(tcp.Port)}
	}
	a.Logger = cfg.Logger.Named("consul")
	announcer, err := consul.NewAnnouncer(a)
	if err != nil {
		cfg.Logger.Error("cannot register the gateway in Consul", "error", err)
		return nil
	}
	return announcer
}

// override replaces a setting by a flag that was given.
func override(setting *string, flag string) {
	if flag != "" {
		*setting = flag
	}
}
