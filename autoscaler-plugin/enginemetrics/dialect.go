package enginemetrics

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
)

// Quantity is one thing that engines measure. Metric names differ from engine
// to engine, quantities do not.
type Quantity int

// The quantities. Counts are requests, times are seconds.
const (
	// Running is how many requests are in the batch.
	Running Quantity = iota
	// Waiting is how many requests the engine has accepted and not started.
	Waiting
	// Swapped is added to Waiting: vLLM before its V1 engine counted preempted
	// requests apart.
	Swapped
	// KVUsage is the share of the KV cache in use, 0 to 1.
	KVUsage
	// CacheInfo is a series whose labels describe the KV cache, as vLLM's.
	CacheInfo
	// Blocks and BlockSize are the KV cache's blocks and the tokens in each.
	Blocks
	BlockSize
	// KVTokens is how many tokens the KV cache holds.
	KVTokens
	// SleepState is 0 on the series sleep_state="awake" of an engine that sleeps.
	SleepState
	// Finished counts requests that ended, for whatever reason.
	Finished
	// PromptTokens and GenerationTokens count tokens read and written.
	PromptTokens
	GenerationTokens
	// The sums and counts of latency histograms, in seconds.
	QueueSum
	QueueCount
	EndToEndSum
	EndToEndCount
	// The buckets of latency histograms, in seconds.
	FirstTokens
	InterTokens

	quantities // how many there are
)

// counters is how many quantities are counters, and latencies how many are buckets; they come last.
const (
	counters  = int(FirstTokens - Finished)
	latencies = int(quantities - FirstTokens)
)

var quantityNames = [quantities]string{"running", "waiting", "swapped", "kv_usage", "cache_info", "blocks",
	"block_size", "kv_tokens", "sleep_state", "finished", "prompt_tokens", "generation_tokens",
	"queue_sum", "queue_count", "end_to_end_sum", "end_to_end_count", "first_tokens", "inter_tokens"}

func (q Quantity) String() string {
	if q < 0 || q >= quantities {
		return fmt.Sprintf("quantity(%d)", int(q))
	}
	return quantityNames[q]
}

// core quantities decide whether an engine's load is known.
var core = [...]Quantity{Running, Waiting, KVUsage}

// isCore tells whether q is a core quantity.
func isCore(q Quantity) bool { return slices.Contains(core[:], q) }

// Dialect is how one kind of engine names its metrics. A Dialect in use must
// not be changed.
type Dialect struct {
	// Name is how users choose it.
	Name string
	// Metrics are the names of each quantity, the preferred one first. Only the
	// first name that has series counts, so that an engine that shows an old and
	// a new name is not counted twice.
	Metrics map[Quantity][]string
	// Optional are core quantities of Metrics that not every version shows. A core
	// quantity that is not optional and not shown is bad, not absent.
	Optional []Quantity
	// KVPercent says that full is 100, not 1. No engine of the table does this;
	// some adapters in front of engines do.
	KVPercent bool
	// ModelLabel names the label with the model's name. A series without it
	// belongs to any model: the page is that of one engine.
	ModelLabel string
	// RankLabels tell data-parallel ranks apart: their requests add up.
	RankLabels []string
	// ShardLabels tell the shards of one rank apart (tensor, pipeline and expert
	// parallel): each says the same thing, so the highest counts once.
	ShardLabels []string
	// DetailLabels break a total down. A series with one of them is left out where
	// a series without stands beside it.
	DetailLabels []string
}

// buckets names the buckets of a histogram.
func buckets(m map[Quantity][]string, q Quantity, names ...string) {
	for _, n := range names {
		m[q] = append(m[q], n+"_bucket")
	}
}

// histogram names the sum and the count of a histogram.
func histogram(m map[Quantity][]string, sum Quantity, names ...string) {
	for _, n := range names {
		m[sum] = append(m[sum], n+"_sum")
		m[sum+1] = append(m[sum+1], n+"_count")
	}
}

// VLLM is vLLM, old and new, and the simulator `remuda sim`, which speaks the
// same names.
func VLLM() *Dialect {
	m := map[Quantity][]string{
		Running:          {"vllm:num_requests_running"},
		Waiting:          {"vllm:num_requests_waiting"},
		Swapped:          {"vllm:num_requests_swapped"},
		KVUsage:          {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},
		CacheInfo:        {"vllm:cache_config_info"},
		SleepState:       {"vllm:engine_sleep_state"},
		Finished:         {"vllm:request_success_total", "vllm:request_success"},
		PromptTokens:     {"vllm:prompt_tokens_total"},
		GenerationTokens: {"vllm:generation_tokens_total"},
	}
	buckets(m, FirstTokens, "vllm:time_to_first_token_seconds")
	histogram(m, QueueSum, "vllm:request_queue_time_seconds")
	histogram(m, EndToEndSum, "vllm:e2e_request_latency_seconds")
	buckets(m, InterTokens, "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
	return &Dialect{Name: "vllm", Metrics: m, ModelLabel: "model_name", RankLabels: []string{"engine"}}
}

// SGLang is SGLang with --enable-metrics.
func SGLang() *Dialect {
	m := map[Quantity][]string{
		Running:          {"sglang:num_running_reqs"},
		Waiting:          {"sglang:num_queue_reqs"},
		KVUsage:          {"sglang:token_usage"},
		KVTokens:         {"sglang:max_total_num_tokens"},
		Finished:         {"sglang:num_requests_total"},
		PromptTokens:     {"sglang:prompt_tokens_total"},
		GenerationTokens: {"sglang:generation_tokens_total"},
	}
	buckets(m, FirstTokens, "sglang:time_to_first_token_seconds")
	histogram(m, QueueSum, "sglang:queue_time_seconds")
	histogram(m, EndToEndSum, "sglang:e2e_request_latency_seconds")
	buckets(m, InterTokens, "sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds")
	return &Dialect{Name: "sglang", Metrics: m, ModelLabel: "model_name", RankLabels: []string{"dp_rank"},
		ShardLabels: []string{"tp_rank", "pp_rank", "moe_ep_rank"}, DetailLabels: []string{"priority"}}
}

// TensorRTLLM is TensorRT-LLM's own server.
func TensorRTLLM() *Dialect {
	m := map[Quantity][]string{
		Running:          {"trtllm_num_requests_running"},
		Waiting:          {"trtllm_num_requests_waiting"},
		KVUsage:          {"trtllm_kv_cache_utilization"},
		Blocks:           {"trtllm_kv_cache_max_blocks"},
		BlockSize:        {"trtllm_kv_cache_tokens_per_block"},
		Finished:         {"trtllm_request_success_total"},
		PromptTokens:     {"trtllm_prompt_tokens_total"},
		GenerationTokens: {"trtllm_generation_tokens_total"},
	}
	buckets(m, FirstTokens, "trtllm_time_to_first_token_seconds")
	histogram(m, QueueSum, "trtllm_request_queue_time_seconds")
	histogram(m, EndToEndSum, "trtllm_e2e_request_latency_seconds")
	buckets(m, InterTokens, "trtllm_time_per_output_token_seconds")
	return &Dialect{Name: "trtllm", Metrics: m, ModelLabel: "model_name"}
}

// TGI is Hugging Face's text-generation-inference. It shows no KV usage.
func TGI() *Dialect {
	m := map[Quantity][]string{
		Running:          {"tgi_batch_current_size"},
		Waiting:          {"tgi_queue_size"},
		Finished:         {"tgi_request_success"},
		PromptTokens:     {"tgi_request_input_length_sum"},
		GenerationTokens: {"tgi_request_generated_tokens_sum"},
	}
	histogram(m, QueueSum, "tgi_request_queue_duration")
	histogram(m, EndToEndSum, "tgi_request_duration")
	buckets(m, InterTokens, "tgi_request_mean_time_per_token_duration")
	return &Dialect{Name: "tgi", Metrics: m}
}

// LlamaCPP is llama.cpp's server with --metrics. Versions of today show no KV
// usage; older ones did.
func LlamaCPP() *Dialect {
	return &Dialect{Name: "llamacpp", Metrics: map[Quantity][]string{
		Running:          {"llamacpp:requests_processing"},
		Waiting:          {"llamacpp:requests_deferred"},
		KVUsage:          {"llamacpp:kv_cache_usage_ratio"},
		PromptTokens:     {"llamacpp:prompt_tokens_total"},
		GenerationTokens: {"llamacpp:tokens_predicted_total"},
	}, Optional: []Quantity{KVUsage}}
}

// Ollama has no metrics. Use the gateway's own slot occupancy for it.
func Ollama() *Dialect { return &Dialect{Name: "ollama"} }

// Dialects are those of the table, in its order.
func Dialects() []*Dialect {
	return []*Dialect{VLLM(), SGLang(), TensorRTLLM(), TGI(), LlamaCPP(), Ollama()}
}

// ErrUnknownDialect is what Lookup answers for a name that is not in the table.
var ErrUnknownDialect = errors.New("unknown dialect")

// percentSuffix asks Lookup for a dialect whose KV usage is in percent.
const percentSuffix = "-percent"

// Lookup finds a dialect of the table by name; "sim" is vLLM's. A name with
// "-percent" at its end, such as vllm-percent, is the same dialect with a KV
// usage whose full is 100.
func Lookup(name string) (*Dialect, error) {
	if name == "sim" {
		return VLLM(), nil
	}
	var known []string
	base, percent := strings.CutSuffix(name, percentSuffix)
	for _, d := range Dialects() {
		if d.Name == base && (!percent || len(d.Metrics[KVUsage]) > 0) {
			d.Name, d.KVPercent = name, percent
			return d, nil
		}
		known = append(known, d.Name)
	}
	return nil, fmt.Errorf("%w %q: must be sim or one of %s, with the suffix %s for a KV usage in percent",
		ErrUnknownDialect, name, strings.Join(known, ", "), percentSuffix)
}

// Rename gives core quantities other names of series, for servers that relabel. The names are by
// quantity, as in "kv_usage".
func (d *Dialect) Rename(series map[string]string) error {
	var errs []error
	owner := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(series)) {
		to := series[name]
		i := slices.IndexFunc(core[:], func(q Quantity) bool { return q.String() == name })
		switch {
		case i < 0:
			errs = append(errs, fmt.Errorf("series has %q: must be running, waiting or kv_usage", name))
			continue
		case !model.LegacyValidation.IsValidMetricName(to):
			errs = append(errs, fmt.Errorf("series %s is %q: must be a metric name of letters, digits, _ and :", name, to))
		case owner[to] != "":
			errs = append(errs, fmt.Errorf("series %s is %q: duplicate of series %s", name, to, owner[to]))
		}
		owner[to] = name
		d.Metrics[core[i]] = []string{to}
	}
	return errors.Join(errs...)
}

// requires tells whether an engine of this dialect always shows q.
func (d *Dialect) requires(q Quantity) bool {
	return len(d.Metrics[q]) > 0 && !slices.Contains(d.Optional, q)
}

// DefaultWindow is over how long peaks are taken: the range of the queries'
// max_over_time.
const DefaultWindow = time.Minute
