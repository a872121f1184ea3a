package usage

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
)

// Commit is one step of Run.
func (r *Recorder) Commit(ctx context.Context) int { return r.commit(ctx) }

// Lead is the begin and the end of Run's leadership.
func (r *Recorder) Lead(leading bool) { r.lead(leading) }

// Collectors are the metrics.
func (r *Recorder) Collectors() []prometheus.Collector { return r.metrics.collectors() }
