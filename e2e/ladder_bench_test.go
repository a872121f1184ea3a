//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/devcluster"
)

// The load of the published ladder of fast model actuation (llm-d, Qwen3-32B on an H100): one request a
// second for 120 s, then four a second for 300 s, each of 4,000 tokens that all share, 256 of its own,
// and 256 of the answer. A cold start took 183 s there.
const (
	ladderSlow, ladderAll = 120, 1320
	ladderShared          = 4000
	ladderOwn             = 256
	ladderCold            = "183s"
)

// ladder is one model under that load.
type ladder struct {
	model string
	// failed and waits are of the requests. first is the wait for the first token.
	failed []string
	first  []time.Duration
	// ordered and serves are when a further replica was placed or told to wake, and when it served,
	// since the load's second part began.
	ordered, serves map[string]time.Duration
}

// BenchmarkLadder puts the load on a model whose further replicas are COLD, and on one whose further
// replicas are WARM, at once. nomad-autoscaler scales both by jobs/capacity.policy.hcl.
func BenchmarkLadder(b *testing.B) {
	f := newFleet(b, 1, func(o *devcluster.Options) {
		file := ""
		for model, keep := range map[string]int{"cold": 0, "warm": 3} {
			file += fmt.Sprintf(`model %q {
  min       = 1
  max       = 4
  replicas  = 1
  keep_warm = %d

  variant "sim" {
    gpu {
      count = 1
    }

    weights     = "256MiB"
    memory      = %q
    host_memory = "256MiB"
    cost        = 1
    slots       = 8
    job         = "demo.nomad.hcl"
    vars        = { weights = "256MiB", init_delay = %q }
  }
}
`, model, keep, card, map[string]string{"cold": ladderCold, "warm": "0s"}[model])
		}
		path := filepath.Join(filepath.Dir(o.Model), "ladder.model.hcl")
		require.NoError(b, os.WriteFile(path, []byte(file), 0o600))
		o.Model, o.GPUs, o.NoAutoscaler = path, 8, false
	})
	f.hotWithin(5*time.Minute, "cold", 1)
	f.tiers("warm", 1, 3, 0)
	models := []*ladder{{model: "cold"}, {model: "warm"}}
	var running sync.WaitGroup
	for _, l := range models {
		running.Go(func() { l.run(f) })
	}
	running.Wait()
	for _, l := range models {
		slices.Sort(l.first)
		b.ReportMetric(float64(len(l.failed)), l.model+"-failed")
		b.ReportMetric(float64(len(l.first)), l.model+"-answered")
		b.ReportMetric(l.first[len(l.first)/2].Seconds(), l.model+"-first-token-p50-s")
		b.ReportMetric(l.first[(len(l.first)-1)*99/100].Seconds(), l.model+"-first-token-p99-s")
		slowest := time.Duration(0)
		for name, at := range l.serves {
			took := at - l.ordered[name]
			slowest = max(slowest, took)
			b.Logf("%s: %s was ordered %s after the load grew, and served %s later", l.model, name, l.ordered[name].Round(10*time.Millisecond), took.Round(10*time.Millisecond))
		}
		b.ReportMetric(slowest.Seconds(), l.model+"-replica-serves-max-s")
		b.ReportMetric(float64(1+len(l.serves)), l.model+"-replicas")
		b.Logf("%s: failed, the last ones: %q", l.model, last(l.failed, 3))
	}
	b.ReportMetric(0, "ns/op")
}

// run puts the load on the model.
func (l *ladder) run(f *fleet) {
	shared := strings.Repeat(" ab", ladderShared) // three bytes are a token
	began := time.Now()
	grows := began.Add(ladderSlow * time.Second)
	ctx, cancel := context.WithCancel(context.Background())
	var watching, asking sync.WaitGroup
	watching.Go(func() { l.watch(ctx, f, grows) })
	var mu sync.Mutex
	for i := range ladderAll {
		at := began.Add(time.Duration(i) * time.Second)
		if i > ladderSlow {
			at = grows.Add(time.Duration(i-ladderSlow) * time.Second / 4)
		}
		time.Sleep(time.Until(at))
		asking.Go(func() {
			prompt := shared + strings.Repeat(fmt.Sprintf(" %c%c", 'a'+i/26%26, 'a'+i%26), ladderOwn)
			asked := time.Now()
			got, err := streamChat(context.Background(), f.info.Gateway, l.model, prompt, 256)
			if err == nil && got.text != exact(l.model, prompt, 256).Text {
				err = errors.New("another text")
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				l.failed = append(l.failed, fmt.Sprintf("after %s: %v", time.Since(asked).Round(time.Millisecond), err))
				return
			}
			l.first = append(l.first, got.first.Sub(asked))
		})
	}
	asking.Wait()
	cancel()
	watching.Wait()
}

// watch notes what becomes of replicas that do not serve at first.
func (l *ladder) watch(ctx context.Context, f *fleet, grows time.Time) {
	l.ordered, l.serves = map[string]time.Duration{}, map[string]time.Duration{}
	for ctx.Err() == nil {
		replicas, _ := f.replicas(l.model)
		for name, r := range replicas {
			now := time.Since(grows)
			_, ordered := l.ordered[name]
			_, serves := l.serves[name]
			switch {
			case !ordered && (r.Status == "placed" || r.Status == "starting" || r.Status == "waking"):
				l.ordered[name] = r.Since.Sub(grows)
			case ordered && !serves && r.Status == "serving":
				l.serves[name] = now
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}
