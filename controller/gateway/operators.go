package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/hashicorp/go-hclog"

	"remuda/controller/gateway/openai"
)

// listen opens the ports for clients and for operators.
func (g *Gateway) listen(ctx context.Context) (clients, operators net.Listener, err error) {
	if clients, err = (&net.ListenConfig{KeepAliveConfig: clientKeepAlive}).Listen(ctx, "tcp", g.cfg.Listen); err != nil {
		return nil, nil, fmt.Errorf("listen for clients: %w", err)
	}
	if g.certificates != nil {
		if err = g.certificates.Load(); err != nil {
			_ = clients.Close() // no client has seen it
			return nil, nil, err
		}
	}
	if operators, err = (&net.ListenConfig{}).Listen(ctx, "tcp", g.cfg.OperatorListen); err != nil {
		_ = clients.Close() // no client has seen it
		return nil, nil, fmt.Errorf("listen for operators (operator_listen): %w", err)
	}
	return clients, operators, nil
}

// serveOperators serves the operators' port until stop is called. Stop closes all its connections.
func (g *Gateway) serveOperators(l net.Listener) (stop func()) {
	server := &http.Server{
		Handler:           http.HandlerFunc(g.operate),
		ReadHeaderTimeout: g.cfg.Timeouts.Header,
		ReadTimeout:       g.cfg.Timeouts.Header,
		WriteTimeout:      g.cfg.Timeouts.Header + g.cfg.Timeouts.Write,
		IdleTimeout:       g.cfg.Timeouts.KeepAlive,
		MaxHeaderBytes:    int(g.cfg.Limits.Header),
		ErrorLog:          g.log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Warn}),
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			// Clients can be served without it.
			g.log.Error("the operators' port has failed: metrics are not available until a restart", "address", l.Addr(), "error", err)
		}
	})
	return func() {
		_ = server.Close() // a scrape that is cut off is repeated
		serving.Wait()
	}
}

// operate is the handler of every request at the operators' port.
func (g *Gateway) operate(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	// Answers with the metrics in Prometheus' text format.
	case "/metrics":
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			g.scrape.ServeHTTP(w, r)
		} else {
			errMethod(r.Method, r.URL.Path, allowGet).write(w, r, openai.OpenAI)
		}
	// Answers as at the clients' port.
	case "/live":
		g.text(w, r, http.StatusOK, "alive\n")
	// Answers as at the clients' port.
	case "/ready":
		g.ready(w, r)
	default:
		errNoOperatorRoute(r.URL.Path).write(w, r, openai.OpenAI)
	}
}

func errNoOperatorRoute(path string) *apiError {
	return &apiError{status: http.StatusNotFound, typ: typeRequest, code: "unknown_url",
		message: fmt.Sprintf("unknown path %s at the operators' port; use /metrics, /live or /ready, and the clients' port for the API", shorten(path))}
}
