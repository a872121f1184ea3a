package dialect

import (
	"bytes"
	"fmt"
	"math"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// vLLM's gauges. Waiting requests were counted in two gauges until the V1
// engine, which no longer swaps to host memory.
const (
	runningGauge = "vllm:num_requests_running"
	waitingGauge = "vllm:num_requests_waiting"
	swappedGauge = "vllm:num_requests_swapped"

	gaugePrefix = "vllm:num_requests_"
)

// progressMetrics change with each step of vLLM's engine core that works on a request. The
// token counters alone would not do: vLLM counts a prompt's tokens when its prefill is
// complete, which takes minutes for a long prompt. The KV cache grows with each chunk of a
// prefill. gpu_cache_usage_perc is its name before vLLM 0.10.
var progressMetrics = []string{
	"vllm:prompt_tokens_total", generatedCounter, "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc",
}

// generatedCounter counts the tokens of answers as they are made.
const generatedCounter = "vllm:generation_tokens_total"

// seriesOf returns the series of these metrics as they stand on the page.
func seriesOf(page []byte, names ...string) string {
	var found []byte
	for line := range bytes.Lines(page) {
		for _, name := range names {
			if bytes.HasPrefix(line, []byte(name)) {
				found = append(found, line...)
			}
		}
	}
	return string(found)
}

// parseUsage adds up the requests of all series, whatever their labels: the
// data-parallel ranks of an engine (label engine) share its fate, and a series
// under another model_name would still be work that a sleep would break.
func parseUsage(page []byte) (Usage, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(only(page, gaugePrefix)))
	if err != nil {
		return Usage{}, fmt.Errorf("%w its usage: its metrics page is malformed: %w", ErrUnknown, err)
	}
	running, err := sum(families, runningGauge, true)
	if err != nil {
		return Usage{}, err
	}
	waiting, err := sum(families, waitingGauge, true)
	if err != nil {
		return Usage{}, err
	}
	swapped, err := sum(families, swappedGauge, false)
	if err != nil {
		return Usage{}, err
	}
	return Usage{Running: running, Waiting: waiting + swapped, Progress: seriesOf(page, progressMetrics...), Generated: seriesOf(page, generatedCounter)}, nil
}

// only keeps the lines of a metrics page that are about metrics whose name
// starts with prefix. It saves parsing hundreds of histogram lines, and keeps
// lines away from the parser on which it panics (expfmt 0.67.5 on "{}0").
func only(page []byte, prefix string) []byte {
	var kept []byte
	for line := range bytes.Lines(page) {
		text := bytes.TrimLeft(line, " \t")
		if comment, ok := bytes.CutPrefix(text, []byte("# TYPE ")); ok {
			text = comment
		}
		if bytes.HasPrefix(text, []byte(prefix)) {
			kept = append(kept, line...)
		}
	}
	return append(kept, '\n') // the parser wants the last line ended
}

// sum adds up the series of one gauge.
func sum(families map[string]*dto.MetricFamily, name string, required bool) (int, error) {
	series := families[name].GetMetric()
	if len(series) == 0 && required {
		return 0, fmt.Errorf("%w its usage: its metrics have no %s", ErrUnknown, name)
	}
	total := 0.0
	for _, m := range series {
		v, ok := sample(m)
		if !ok || math.IsNaN(v) || v < 0 || v > math.MaxInt32 {
			return 0, fmt.Errorf("%w its usage: %s is %v: must be a count", ErrUnknown, name, v)
		}
		total += v
	}
	return int(math.Ceil(total)), nil
}

func sample(m *dto.Metric) (float64, bool) {
	switch {
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue(), true
	case m.GetUntyped() != nil:
		return m.GetUntyped().GetValue(), true
	}
	return 0, false
}
