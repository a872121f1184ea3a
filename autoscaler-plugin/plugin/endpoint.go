package plugin

import (
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// endpoint serves metrics at an address that may change.
type endpoint struct {
	handler http.Handler
	log     hclog.Logger
	at      string
	server  *http.Server
	serving sync.WaitGroup
}

func newEndpoint(r *prometheus.Registry, log hclog.Logger) *endpoint {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	return &endpoint{handler: mux, log: log}
}

// listen goes over to another address, or ends with an empty one. An address that is taken
// costs the metrics and nothing else. It is for one goroutine at a time.
func (e *endpoint) listen(at string) {
	if at == e.at {
		return
	}
	if e.server != nil {
		if err := e.server.Close(); err != nil {
			e.log.Warn("cannot close the metrics endpoint", "metrics_listen", e.at, "error", err)
		}
		e.serving.Wait()
		e.server = nil
	}
	e.at = ""
	if at == "" {
		return
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		e.log.Error("cannot listen for metrics: none are exported", "metrics_listen", at, "error", err)
		return
	}
	e.at = at
	server := &http.Server{Handler: e.handler, ReadHeaderTimeout: 10 * time.Second}
	e.server = server
	e.serving.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			e.log.Error("the metrics endpoint failed", "error", err)
		}
	})
}
