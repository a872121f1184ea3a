// Package metrics shows the simulated engine under vLLM's metric names.
//
// It guarantees the names, types, labels and buckets of vLLM's V1 engine
// (vllm/v1/metrics/loggers.py), as far as the simulator has the thing to
// measure, so that a dashboard or an autoscaler made for vLLM reads it
// unchanged. Gauges are read from the engine at each scrape and are never
// stale. Series that vLLM does not have carry the prefix remuda_sim_.
//
// Not shown, because nothing is behind it: speculative decoding,
// LoRA, multi-modal cache. Not shown either: vllm:request_params_n,
// vllm:request_max_num_generation_tokens and what newer versions split up by
// reason or source. vllm:time_per_output_token_seconds, the old name of
// vllm:inter_token_latency_seconds, is gone from vLLM and absent here.
package metrics

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"remuda/internal/sim/batch"
	"remuda/internal/sim/engine"
)

// Sleep states, the values of vllm:engine_sleep_state's label.
const (
	Awake            = "awake"
	WeightsOffloaded = "weights_offloaded"
	DiscardAll       = "discard_all"
)

// Config is where the values come from.
type Config struct {
	// Model is the label model_name.
	Model string
	// MaxModelLen bounds the buckets of the token histograms.
	MaxModelLen int
	// BlockSize and Blocks describe the KV cache.
	BlockSize, Blocks int
	// Stats is the batch right now.
	Stats func() batch.Stats
	// SleepState is Awake, WeightsOffloaded or DiscardAll.
	SleepState func() string
	// Memory is how many bytes are on the device and in host memory.
	Memory func() (device, host int64)
	// Faults tells whether any fault switch is on.
	Faults func() bool
}

// Metrics is one engine's registry. It is an engine.Observer.
type Metrics struct {
	registry *prometheus.Registry

	promptTokens, generationTokens, preemptions prometheus.Counter
	prefixQueries, prefixHits                   prometheus.Counter
	success                                     map[string]prometheus.Counter

	ttft, interToken, perToken              prometheus.Histogram
	e2e, queue, prefill, decode, inference  prometheus.Histogram
	requestPrompt, requestGenerated, params prometheus.Histogram
	iteration                               prometheus.Histogram
}

var _ engine.Observer = (*Metrics)(nil)

// Buckets as in vLLM, in seconds unless named otherwise.
var (
	ttftBuckets = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
		1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	tokenBuckets = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
		1, 2.5, 5, 7.5, 10, 20, 40, 80}
	requestBuckets = []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60,
		120, 240, 480, 960, 1920, 7680}
	iterationBuckets = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384} // tokens
)

// New builds the registry.
func New(cfg Config) (*Metrics, error) {
	if cfg.Stats == nil || cfg.SleepState == nil || cfg.Memory == nil || cfg.Faults == nil {
		return nil, errors.New("metrics: Stats, SleepState, Memory and Faults must be set")
	}
	m := &Metrics{registry: prometheus.NewRegistry(), success: map[string]prometheus.Counter{}}
	labels := prometheus.Labels{"model_name": cfg.Model, "engine": "0"}
	m.gauges(cfg, labels)

	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels})
		m.registry.MustRegister(c)
		return c
	}
	m.promptTokens = counter("vllm:prompt_tokens_total", "Number of prefill tokens processed.")
	m.generationTokens = counter("vllm:generation_tokens_total", "Number of generation tokens processed.")
	m.preemptions = counter("vllm:num_preemptions_total", "Cumulative number of preemption from the engine.")
	m.prefixQueries = counter("vllm:prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens.")
	m.prefixHits = counter("vllm:prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.")
	success := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "vllm:request_success_total", Help: "Count of successfully processed requests.", ConstLabels: labels,
	}, []string{"finished_reason"})
	m.registry.MustRegister(success)
	for _, reason := range []string{"stop", "length", "abort", "error"} {
		m.success[reason] = success.WithLabelValues(reason)
	}

	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: labels, Buckets: buckets})
		m.registry.MustRegister(h)
		return h
	}
	m.ttft = histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", ttftBuckets)
	m.interToken = histogram("vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", tokenBuckets)
	m.perToken = histogram("vllm:request_time_per_output_token_seconds",
		"Histogram of time_per_output_token_seconds per request.", tokenBuckets)
	m.e2e = histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", requestBuckets)
	m.queue = histogram("vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", requestBuckets)
	m.inference = histogram("vllm:request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", requestBuckets)
	m.prefill = histogram("vllm:request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", requestBuckets)
	m.decode = histogram("vllm:request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", requestBuckets)
	counts := oneTwoFive(cfg.MaxModelLen)
	m.requestPrompt = histogram("vllm:request_prompt_tokens", "Number of prefill tokens processed.", counts)
	m.requestGenerated = histogram("vllm:request_generation_tokens", "Number of generation tokens processed.", counts)
	m.params = histogram("vllm:request_params_max_tokens", "Histogram of the max_tokens request parameter.", counts)
	m.iteration = histogram("vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", iterationBuckets)
	m.registry.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m, nil
}

func (m *Metrics) gauges(cfg Config, labels prometheus.Labels) {
	gauge := func(name, help string, labels prometheus.Labels, value func() float64) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(
			prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value))
	}
	gauge("vllm:num_requests_running", "Number of requests in model execution batches.", labels,
		func() float64 { return float64(cfg.Stats().Running) })
	gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", labels,
		func() float64 { return float64(cfg.Stats().Waiting) })
	gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", labels,
		func() float64 { s := cfg.Stats(); return float64(s.UsedBlocks) / float64(s.TotalBlocks) })
	for _, state := range []string{Awake, WeightsOffloaded, DiscardAll} {
		with := prometheus.Labels{"sleep_state": state}
		for k, v := range labels {
			with[k] = v
		}
		gauge("vllm:engine_sleep_state", "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "+
			"weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.", with,
			func() float64 { return truth(cfg.SleepState() == state) })
	}
	gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", prometheus.Labels{
		"engine": "0", "block_size": strconv.Itoa(cfg.BlockSize), "num_gpu_blocks": strconv.Itoa(cfg.Blocks),
		"cache_dtype": "auto", "enable_prefix_caching": "True", "num_cpu_blocks": "0", "num_gpu_blocks_override": strconv.Itoa(cfg.Blocks),
	}, func() float64 { return 1 })
	gauge("remuda_sim_device_memory_bytes", "Memory that stands in for GPU memory, leaks included.", labels,
		func() float64 { device, _ := cfg.Memory(); return float64(device) })
	gauge("remuda_sim_host_memory_bytes", "Weights kept in host memory while asleep at level 1.", labels,
		func() float64 { _, host := cfg.Memory(); return float64(host) })
	gauge("remuda_sim_faulty", "1 while any fault switch is on.", labels,
		func() float64 { return truth(cfg.Faults()) })
}

// Handler serves the registry as Prometheus text.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Step implements engine.Observer.
func (m *Metrics) Step(promptTokens, generated int) {
	m.promptTokens.Add(float64(promptTokens))
	m.generationTokens.Add(float64(generated))
	m.iteration.Observe(float64(promptTokens + generated))
}

// Admitted implements engine.Observer.
func (m *Metrics) Admitted(promptTokens, cached int) {
	m.prefixQueries.Add(float64(promptTokens))
	m.prefixHits.Add(float64(cached))
}

// Preempted implements engine.Observer.
func (m *Metrics) Preempted(n int) { m.preemptions.Add(float64(n)) }

// FirstToken implements engine.Observer.
func (m *Metrics) FirstToken(d time.Duration) { m.ttft.Observe(d.Seconds()) }

// InterToken implements engine.Observer.
func (m *Metrics) InterToken(d time.Duration) { m.interToken.Observe(d.Seconds()) }

// Finished implements engine.Observer.
func (m *Metrics) Finished(f engine.Finished) {
	if c, ok := m.success[f.Reason]; ok {
		c.Inc()
	}
	m.e2e.Observe(f.Total.Seconds())
	m.queue.Observe(f.Queue.Seconds())
	m.prefill.Observe(f.Prefill.Seconds())
	m.decode.Observe(f.Decode.Seconds())
	m.inference.Observe(f.Inference.Seconds())
	m.requestPrompt.Observe(float64(f.PromptTokens))
	m.requestGenerated.Observe(float64(f.GeneratedTokens))
	if f.MaxTokens > 0 {
		m.params.Observe(float64(f.MaxTokens))
	}
	if f.GeneratedTokens > 1 {
		m.perToken.Observe(f.Decode.Seconds() / float64(f.GeneratedTokens-1))
	}
}

// oneTwoFive is 1, 2, 5, 10, … up to limit, as vLLM builds them.
func oneTwoFive(limit int) []float64 {
	var out []float64
	for exp := 1; ; exp *= 10 {
		for _, m := range []int{1, 2, 5} {
			if m*exp > limit {
				return out
			}
			out = append(out, float64(m*exp))
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
