//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/devcluster"
	"remuda/internal/replica"
	"remuda/jobs"
)

// BenchmarkPairFailover takes the time from the last token before a fault of the engine that serves to
// the first one after it, as a client sees it that streams all the time, and the time until a standby
// is ready again. Pairs have a worker on each of 1, 2 and 4 GPUs, with so much of the weights on each.
// An iteration is a fault: an engine is killed, or a worker of each pair's engine hangs.
func BenchmarkPairFailover(b *testing.B) {
	f := newFleet(b, 1, func(o *devcluster.Options) { o.GPUs = 7 })
	require.NoError(b, os.WriteFile(filepath.Join(f.dir, "failover.nomad.hcl"), []byte(jobs.Failover), 0o600))
	for _, set := range []struct {
		weights int // MiB on each GPU
		gpus    []int
	}{{256, []int{1, 2, 4}}, {2048, []int{1}}, {2048, []int{2}}, {2048, []int{4}}} { // as much as fits a small machine
		w := &twins{f}
		b.Run(fmt.Sprintf("weights=%dMiB/gpus=%v", set.weights, set.gpus), func(b *testing.B) {
			f.t, f.dev.t = b, b
			var pairs []string
			for _, gpus := range set.gpus {
				pair := fmt.Sprintf("pair-%d", gpus)
				pairs = append(pairs, pair)
				path := filepath.Join(f.dir, pair+".model.hcl")
				require.NoError(b, os.WriteFile(path, fmt.Appendf(nil, `model %q {
  replicas = 1
  max      = 1
  failover = true

  variant "sim" {
    gpu {
      count = %d
    }

    weights = "%dMiB"
    memory  = "60GiB"
    cost    = 1
    slots   = 16
    engine  = "sim"
    job     = "failover.nomad.hcl"
    vars    = { weights = "%dMiB", memory = "%d", workers = true, kv_memory = "50GiB", context_memory = "400MiB" }
  }
}
`, pair, gpus, gpus*set.weights, gpus*set.weights, gpus*set.weights+1024), 0o600))
				f.remuda("model", "apply", "-detach", path)
			}
			for _, pair := range pairs {
				f.hot(pair, 1)
			}
			for _, pair := range pairs {
				b.Run("kill="+pair, func(b *testing.B) { w.measure(b, []string{pair}, func(engine int) { kill9(b, engine) }) })
			}
			// They wait for the shims nearly all the time: at once.
			b.Run("hang", func(b *testing.B) {
				w.measure(b, pairs, func(engine int) { require.NoError(b, syscall.Kill(workersOf(b, engine)[0], syscall.SIGSTOP)) })
			})
			f.t, f.dev.t = b, b
			f.clear(pairs...)
		})
	}
	f.t, f.dev.t = b, b
}

// measured is one pair of a measurement.
type measured struct {
	pair          string
	viewer        *viewer
	token         replica.Token
	resumed       <-chan time.Duration
	ready         bool // the next standby
	gaps, standby []time.Duration
}

// measure has the engines of pairs that serve fail, all pairs at once, b.N times.
func (w *twins) measure(b *testing.B, pairs []string, strike func(engine int)) {
	b.Helper()
	w.t, w.dev.t = b, b
	ctx, cancel := context.WithCancel(context.Background())
	var viewing sync.WaitGroup
	defer viewing.Wait()
	defer cancel()
	var all []*measured
	for _, pair := range pairs {
		m := &measured{pair: pair, viewer: watchAnswers(b, ctx, w.info.Gateway, pair, &viewing)}
		all = append(all, m)
		eventually(b, time.Minute, "the first token", m.viewer.seesTokens)
		eventually(b, 2*time.Minute, "the standby", func() error { return w.standsBy(pair) })
	}
	for range b.N {
		began := time.Now()
		for _, m := range all {
			old := w.engine(m.pair)
			engine := w.enginePID(old.HostPort())
			m.token, m.ready, began = old.Token, false, time.Now()
			m.resumed = m.viewer.kill(func() { strike(engine) })
		}
		eventually(b, 2*time.Minute, "the next standby of each", func() error {
			var errs []error
			for _, m := range all {
				if m.ready {
					continue
				}
				err := w.failedOverSince(m)
				if err == nil {
					m.ready, m.standby = true, append(m.standby, time.Since(began))
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		})
		for _, m := range all {
			select {
			case gap := <-m.resumed:
				m.gaps = append(m.gaps, gap)
			case <-time.After(time.Minute):
				b.Fatalf("no answer from the other engine of %s within a minute", m.pair)
			}
		}
	}
	for _, m := range all {
		for name, d := range map[string][]time.Duration{"gap": m.gaps, "standby": m.standby} {
			slices.Sort(d)
			for quantile, at := range map[string]int{"p50": len(d) / 2, "p99": (len(d) - 1) * 99 / 100, "max": len(d) - 1} {
				b.ReportMetric(float64(d[at].Microseconds())/1000, fmt.Sprintf("%s-%s-%s-ms", m.pair, name, quantile))
			}
		}
	}
	b.ReportMetric(0, "ns/op")
}

// failedOverSince returns nil once an engine with a larger token serves and another one stands by.
func (w *twins) failedOverSince(m *measured) error {
	now, err := w.passing(m.pair)
	if err == nil && (len(now) != 1 || now[0].Token.Compare(m.token) <= 0) {
		err = fmt.Errorf("%s: Consul has %+v after %s", m.pair, now, m.token)
	}
	if err != nil {
		return err
	}
	return w.standsBy(m.pair)
}
