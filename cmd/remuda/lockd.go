package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"remuda/lockd"
)

func (p *program) lockdVerb() verb {
	return verb{
		synopsis: "Run the failover lock server",
		usage:    "-socket PATH -state FILE [flags]",
		about: `Grants locks, one for each failover group, first come, first served. A lock belongs to the process that connected
to the Unix socket and is free again when that process and everything that descends from it is gone: what is
left of a dead holder is killed, and so is a holder that lost its connection and does not come back within
-reconnect-window. Tokens grow with every grant, also across crashes, by the state file.

With -listen, holders on other machines may take locks over TCP with client certificates. No kernel can tell
whether they live, so they have sessions: silent for -session-ttl, and then -lock-delay, and the lock is free.`,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			cfg := lockd.DefaultConfig()
			var logLevel, cert, key, ca, metricsAddr string
			fs.StringVar(&cfg.Socket, "socket", "", "`path` of the Unix socket (required)")
			fs.StringVar(&cfg.State, "state", "", "`path` of the state file (required); a witness is kept beside it")
			fs.StringVar(&cfg.Listen, "listen", "", "TCP `address` for holders on other machines (default: none)")
			fs.StringVar(&cert, "tls-cert", "", "certificate `file` for -listen")
			fs.StringVar(&key, "tls-key", "", "key `file` for -listen")
			fs.StringVar(&ca, "tls-ca", "", "`file` with the authorities of client certificates for -listen")
			fs.DurationVar(&cfg.Times.Reconnect, "reconnect-window", cfg.Times.Reconnect, "how long a holder that lives may be without its connection before it is killed")
			fs.DurationVar(&cfg.Times.SessionTTL, "session-ttl", cfg.Times.SessionTTL, "how long a holder on another machine may be silent")
			fs.DurationVar(&cfg.Times.LockDelay, "lock-delay", cfg.Times.LockDelay, "how long a lock stays shut after the session of a holder on another machine ended")
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
				if cfg.TLS, err = serverTLS(cert, key, ca); err != nil {
					return err
				}
				registry := prometheus.NewRegistry()
				registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
				cfg.Metrics = registry
				server, err := lockd.New(cfg)
				if err != nil {
					return usageError{err.Error()}
				}
				stop, err := serveMetrics(metricsAddr, registry)
				if err != nil {
					return err
				}
				defer stop()
				return server.Run(ctx)
			}
		},
	}
}

// serverTLS is the TLS of a server that knows its clients by their certificates;
// nil without files.
func serverTLS(cert, key, ca string) (*tls.Config, error) {
	pair, pool, err := readTLS("tls", cert, key, ca)
	if pool == nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}, nil
}

// clientTLS is the TLS of a client with a certificate; nil without files.
func clientTLS(cert, key, ca string) (*tls.Config, error) {
	pair, pool, err := readTLS("lock-tls", cert, key, ca)
	if pool == nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// readTLS reads a certificate, its key and the authorities of the other side from
// files; pool is nil without files and after an error. flags begins the names of
// the flags that gave them.
func readTLS(flags, cert, key, ca string) (pair tls.Certificate, pool *x509.CertPool, err error) {
	if cert == "" && key == "" && ca == "" {
		return pair, nil, nil
	}
	if cert == "" || key == "" || ca == "" {
		return pair, nil, usagef("-%s-cert, -%s-key and -%s-ca go together: give all three or none", flags, flags, flags)
	}
	if pair, err = tls.LoadX509KeyPair(cert, key); err != nil {
		return pair, nil, fmt.Errorf("-%s-cert and -%s-key: %w", flags, flags, err)
	}
	raw, err := os.ReadFile(ca)
	if err != nil {
		return pair, nil, fmt.Errorf("-%s-ca: %w", flags, err)
	}
	pool = x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return pair, nil, fmt.Errorf("-%s-ca: %s has no certificate in PEM form", flags, ca)
	}
	return pair, pool, nil
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
