package observe_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/observe"
	"remuda/internal/testkit/consultest"
)

// BenchmarkScrape is the first look at a model of 200 engines: HTTP over loopback and the
// parsing of a page as vLLM's (enginemetrics.BenchmarkWholePage has the parsing alone). The server
// of the pages shares the cores.
func BenchmarkScrape(b *testing.B) {
	const replicas = 200
	text, err := os.ReadFile(filepath.Join("..", "enginemetrics", "testdata", "vllm.txt"))
	require.NoError(b, err)
	agent := consultest.New(b)
	e := newEngine(b, string(text))
	for i := range replicas {
		register(b, agent, e.server.Listener.Addr().String(), name("a100", fmt.Sprint(i)), "primary", 1, "passing")
	}
	q := observe.Question{Model: "llama", Shown: "meta-llama/Llama-3.1-8B-Instruct"}
	var took time.Duration
	for b.Loop() {
		b.StopTimer()
		s := scraper(b, agent, func(c *observe.ScrapeConfig) {
			c.Interval, c.Timeout, c.FirstWait = time.Hour, time.Minute, time.Minute
		})
		_, err := s.Report(b.Context(), observe.Question{Model: "other", Shown: "other"}) // Consul has answered
		require.NoError(b, err)
		b.StartTimer()
		start := time.Now()
		r, err := s.Report(b.Context(), q)
		took += time.Since(start)
		require.NoError(b, err)
		require.Len(b, r.Engines, replicas)
		require.Equal(b, enginemetrics.ClassOK, r.Engines[replicas-1].View.Class, r.Engines[replicas-1].View.Why)
	}
	b.ReportMetric(float64(took.Microseconds())/float64(b.N)/replicas, "µs/engine")
	b.ReportMetric(float64(len(text)), "bytes/page")
}
