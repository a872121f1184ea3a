package main

import "fmt"

// boards are all dashboards. Expressions name recorded series (with colons) of
// jobs/monitoring/rules.yml, and metrics of docs/reference/metrics.md; a test checks both.
var boards = []board{overview, model, gpus, failover, autoscaler}

// Units of Grafana.
const (
	perSecond = "reqps"
	tokens    = "short"
	seconds   = "s"
	bytes     = "bytes"
	bytesPerS = "Bps"
	ratio     = "percentunit"
	count     = "short"
	watts     = "watt"
	celsius   = "celsius"
	hertz     = "hertz"
)

// quantiles are two quantiles of a histogram, by labels and with a selector in braces.
func quantiles(metric, selector, by string) []query {
	legend := ""
	grouped := "le"
	if by != "" {
		grouped, legend = "le, "+by, "{{"+by+"}} "
	}
	var out []query
	for _, q := range []struct{ quantile, name string }{{"0.5", "p50"}, {"0.99", "p99"}} {
		out = append(out, query{fmt.Sprintf("histogram_quantile(%s, sum by (%s) (rate(%s_bucket%s[$__rate_interval])))", q.quantile, grouped, metric, selector), legend + q.name})
	}
	return out
}

// one is a panel's only query.
func one(expr, legend string) []query { return []query{{expr, legend}} }

var overview = board{
	name: "overview", title: "Overview", description: "What clients get, and whether all parts are well.",
	rows: []row{
		{"What needs a hand", []panel{
			{title: "Models that do not serve", unit: count, number: true, bad: 1, description: "They are to have replicas, and none serves.",
				queries: one(`count(max by (model) (remuda_controller_target_replicas) > 0 unless on (model) model:remuda_controller_replicas_serving:sum > 0) or vector(0)`, "")},
			{title: "Servers that lead", unit: count, number: true, description: "1 is right.", queries: one(`sum(remuda_raft_leader) or vector(0)`, "")},
			{title: "GPUs out of use", unit: count, number: true, bad: 1, description: "Unhealthy or cordoned.",
				queries: one(`sum(remuda_controller_gpus{state!="ready"})`, "")},
			{title: "Pairs without a standby", unit: count, number: true, bad: 1, queries: one(`sum(remuda_controller_degraded_replicas) or vector(0)`, "")},
			{title: "Oldest request that waits", unit: seconds, number: true, bad: 60, queries: one(`max(model:remuda_gateway_queue_oldest_seconds:max) or vector(0)`, "")},
			{title: "Requests that fail", unit: ratio, number: true, bad: 0.01, description: "Share of the last 5 minutes with a status of 5xx.",
				queries: one(`sum(model:remuda_gateway_failures:rate5m) / sum(model:remuda_gateway_requests:rate5m)`, "")},
			{title: "Policies that see nothing", unit: count, number: true, bad: 1, queries: one(`sum(remuda_autoscaler_inert) or vector(0)`, "")},
			{title: "Targets without metrics", unit: count, number: true, bad: 1, queries: one(`count(up{job=~"remuda-.+", job!="remuda-engine"} == 0) or vector(0)`, "")},
		}},
		{"Clients", []panel{
			{title: "Requests", unit: perSecond, queries: one(`model:remuda_gateway_requests:rate5m`, "{{model}}")},
			{title: "Requests that fail", unit: perSecond, queries: one(`model:remuda_gateway_failures:rate5m`, "{{model}}")},
			{title: "Requests by status", unit: perSecond, queries: one(`sum by (code) (rate(remuda_gateway_requests_total[$__rate_interval]))`, "{{code}}")},
			{title: "Time to first token of streams, p99", unit: seconds, queries: one(`model:remuda_gateway_time_to_first_token_seconds:p99_5m`, "{{model}}")},
			{title: "Tokens per second", unit: tokens, queries: one(`sum by (type) (model_type:remuda_gateway_tokens:rate5m)`, "{{type}}")},
			{title: "Requests that wait", unit: count, queries: one(`sum by (model) (remuda_gateway_queue_length)`, "{{model}}")},
			{title: "Tokens per second, by key", unit: tokens, queries: one(`topk(10, sum by (key) (rate(remuda_gateway_key_tokens_total{type=~"prompt|completion|estimated"}[$__rate_interval])))`, "{{key}}")},
			{title: "Budgets used", unit: ratio, queries: one(`topk(10, max by (key, period) (remuda_controller_key_budget_used_ratio))`, "{{key}}, {{period}}")},
			{title: "Rejected keys", unit: perSecond, queries: one(`sum(rate(remuda_gateway_rejected_keys_total[$__rate_interval]))`, "")},
		}},
		{"Replicas", []panel{
			{title: "Replicas that serve", unit: count, queries: one(`model:remuda_controller_replicas_serving:sum`, "{{model}}")},
			{title: "Replicas by status", unit: count, queries: one(`sum by (status) (remuda_controller_replicas)`, "{{status}}")},
			{title: "GPUs by state", unit: count, queries: one(`sum by (state) (remuda_controller_gpus)`, "{{state}}")},
			{title: "Decisions in 5 minutes", unit: count, queries: one(`sum by (kind) (increase(remuda_controller_decisions_total[5m])) > 0`, "{{kind}}")},
			{title: "Evictions in 5 minutes", unit: count, queries: one(`sum by (model) (increase(remuda_controller_evictions_total[5m])) > 0`, "{{model}}")},
			{title: "Requests in flight", unit: count, queries: one(`sum by (model) (remuda_gateway_in_flight)`, "{{model}}")},
		}},
		{"Controller and gateways", []panel{
			{title: "Reconciliation", unit: seconds, queries: quantiles("remuda_controller_reconcile_seconds", "", "")},
			{title: "Commits", unit: seconds, queries: quantiles("remuda_raft_apply_seconds", "", "outcome")},
			{title: "Since the last contact with the leader", unit: seconds, queries: one(`remuda_raft_last_contact_seconds`, "{{instance}}")},
			{title: "Nomad and Consul are read", unit: count, queries: one(`min by (source) (remuda_controller_source_up)`, "{{source}}")},
			{title: "Gateways", unit: count, queries: []query{{`max(remuda_controller_gateways)`, "report to the controller"}, {`sum(remuda_gateway_controller_up)`, "reach the controller"}}},
			{title: "Free disk of the controller", unit: bytes, queries: one(`remuda_controller_disk_free_bytes`, "{{instance}}")},
		}},
	},
}

var model = board{
	name: "model", title: "Model", description: "One model: its replicas, requests, queue and engines.",
	variables: []variable{{"model", "remuda_controller_target_replicas", "model"}},
	rows: []row{
		{"Replicas", []panel{
			{title: "To have, and serving", unit: count, queries: []query{
				{`max by (model) (remuda_controller_target_replicas{model=~"$model"})`, "{{model}} to have"},
				{`model:remuda_controller_replicas_serving:sum{model=~"$model"}`, "{{model}} serving"}}},
			{title: "By status", unit: count, queries: one(`sum by (variant, status) (remuda_controller_replicas{model=~"$model"})`, "{{variant}} {{status}}")},
			{title: "By tier and pool", unit: count, queries: one(`sum by (tier, pool) (remuda_controller_replicas{model=~"$model"})`, "{{tier}} {{pool}}")},
		}},
		{"Requests", []panel{
			{title: "Requests by status", unit: perSecond, queries: one(`sum by (code) (rate(remuda_gateway_requests_total{model=~"$model"}[$__rate_interval]))`, "{{code}}")},
			{title: "Requests by route", unit: perSecond, queries: one(`sum by (route) (rate(remuda_gateway_requests_total{model=~"$model"}[$__rate_interval]))`, "{{route}}")},
			{title: "Tokens per second", unit: tokens, queries: one(`sum by (type) (rate(remuda_gateway_tokens_total{model=~"$model"}[$__rate_interval]))`, "{{type}}")},
			{title: "Time to first token of streams", unit: seconds, queries: quantiles("remuda_gateway_time_to_first_token_seconds", `{model=~"$model"}`, "")},
			{title: "Time to first byte", unit: seconds, queries: quantiles("remuda_gateway_time_to_first_byte_seconds", `{model=~"$model"}`, "")},
			{title: "Duration", unit: seconds, queries: quantiles("remuda_gateway_request_duration_seconds", `{model=~"$model"}`, "")},
			{title: "Bytes to clients", unit: bytesPerS, queries: one(`sum by (model) (rate(remuda_gateway_response_bytes_total{model=~"$model"}[$__rate_interval]))`, "{{model}}")},
		}},
		{"Queue", []panel{
			{title: "In flight, and slots", unit: count, queries: []query{
				{`sum by (model) (remuda_gateway_in_flight{model=~"$model"})`, "{{model}} in flight"},
				{`max by (model) (remuda_gateway_slots{model=~"$model"})`, "{{model}} slots"}}},
			{title: "Requests that wait", unit: count, queries: []query{
				{`sum by (model) (remuda_gateway_queue_length{model=~"$model"})`, "{{model}} at the gateways"},
				{`sum by (model) (remuda_controller_waiting{model=~"$model"})`, "{{model}} for a replica"}}},
			{title: "Oldest request that waits", unit: seconds, queries: one(`model:remuda_gateway_queue_oldest_seconds:max{model=~"$model"}`, "{{model}}")},
			{title: "Time in the queue", unit: seconds, queries: quantiles("remuda_gateway_queue_seconds", `{model=~"$model"}`, "")},
			{title: "Rejected by the queue", unit: perSecond, queries: []query{
				{`sum by (model) (rate(remuda_gateway_queue_full_total{model=~"$model"}[$__rate_interval]))`, "{{model}} full"},
				{`sum by (model) (rate(remuda_gateway_queue_timeouts_total{model=~"$model"}[$__rate_interval]))`, "{{model}} waited too long"}}},
		}},
		{"Engines at the gateways", []panel{
			{title: "Engines by state", unit: count, description: "As the gateway that sees most has them.",
				queries: one(`max by (state) (sum by (instance, state) (remuda_gateway_engines{model=~"$model"}))`, "{{state}}")},
			{title: "Failed attempts", unit: perSecond, queries: one(`sum by (replica, kind) (rate(remuda_gateway_upstream_errors_total{model=~"$model"}[$__rate_interval]))`, "{{replica}} {{kind}}")},
			{title: "Retries and continuations", unit: perSecond, queries: []query{
				{`sum by (model) (rate(remuda_gateway_retries_total{model=~"$model"}[$__rate_interval]))`, "{{model}} retries"},
				{`sum by (model) (rate(remuda_gateway_retry_budget_spent_total{model=~"$model"}[$__rate_interval]))`, "{{model}} not retried"},
				{`sum by (model) (rate(remuda_gateway_continuations_total{model=~"$model"}[$__rate_interval]))`, "{{model}} streams continued"}}},
			{title: "Requests of replicas within 30 s", unit: count, queries: []query{
				{`sum by (variant) (remuda_controller_requests_answered{model=~"$model"})`, "{{variant}} answered"},
				{`sum by (variant) (remuda_controller_requests_failed{model=~"$model"})`, "{{variant}} failed"}}},
			{title: "Replacements in an hour", unit: count, queries: one(`sum by (model) (increase(remuda_controller_replacements_total{model=~"$model"}[1h]))`, "{{model}}")},
		}},
		{"Inside the engines (vLLM's metrics)", []panel{
			{title: "KV cache in use", unit: ratio, queries: one(`vllm:kv_cache_usage_perc{model_name=~"$model"}`, "{{replica}}")},
			{title: "Requests", unit: count, queries: []query{
				{`vllm:num_requests_running{model_name=~"$model"}`, "{{replica}} running"},
				{`vllm:num_requests_waiting{model_name=~"$model"}`, "{{replica}} waiting"}}},
			{title: "Prefix cache hits", unit: ratio, queries: one(`sum by (replica) (rate(vllm:prefix_cache_hits_total{model_name=~"$model"}[$__rate_interval])) / sum by (replica) (rate(vllm:prefix_cache_queries_total{model_name=~"$model"}[$__rate_interval]))`, "{{replica}}")},
			{title: "Time to first token", unit: seconds, queries: quantiles("vllm:time_to_first_token_seconds", `{model_name=~"$model"}`, "")},
			{title: "Between two tokens", unit: seconds, queries: quantiles("vllm:inter_token_latency_seconds", `{model_name=~"$model"}`, "")},
			{title: "Preemptions", unit: perSecond, queries: one(`sum by (replica) (rate(vllm:num_preemptions_total{model_name=~"$model"}[$__rate_interval]))`, "{{replica}}")},
		}},
	},
}

var gpus = board{
	name: "gpus", title: "GPU nodes", description: "GPUs, their memory and health, and the daemons of each GPU node.",
	variables: []variable{{"gpu", "remuda_device_info", "gpu"}},
	rows: []row{
		{"Health", []panel{
			{title: "GPUs out of use, by node", unit: count, queries: one(`sum by (node, state) (remuda_controller_gpus{state!="ready"})`, "{{node}} {{state}}")},
			{title: "Why a GPU is not offered", unit: count, queries: one(`remuda_device_unhealthy_info{gpu=~"$gpu"}`, "{{gpu}}: {{reason}}")},
			{title: "XIDs in 5 minutes", unit: count, queries: one(`sum by (gpu, xid, action) (increase(remuda_device_xid_total{gpu=~"$gpu"}[5m])) > 0`, "{{gpu}} XID {{xid}}: {{action}}")},
			{title: "Uncorrectable memory errors", unit: count, queries: one(`remuda_device_uncorrectable_errors{gpu=~"$gpu"}`, "{{gpu}}")},
			{title: "Memory rows replaced", unit: count, queries: []query{
				{`remuda_device_remapped_rows_uncorrectable{gpu=~"$gpu"}`, "{{gpu}} uncorrectable"},
				{`remuda_device_remapped_rows_correctable{gpu=~"$gpu"}`, "{{gpu}} correctable"}}},
			{title: "Failures of NVML in 5 minutes", unit: count, queries: one(`sum by (gpu, cause) (increase(remuda_device_nvml_faults_total{gpu=~"$gpu"}[5m])) > 0`, "{{gpu}} {{cause}}")},
		}},
		{"Memory", []panel{
			{title: "Memory in use", unit: ratio, queries: one(`remuda_device_memory_used_bytes{gpu=~"$gpu"} / remuda_device_memory_bytes{gpu=~"$gpu"}`, "{{gpu}}")},
			{title: "Memory free", unit: bytes, queries: one(`remuda_device_memory_free_bytes{gpu=~"$gpu"}`, "{{gpu}}")},
			{title: "Held by the GPU memory service", unit: bytes, queries: []query{
				{`sum by (gpu) (remuda_gms_used_bytes{gpu=~"$gpu"})`, "{{gpu}} in use"},
				{`sum by (gpu) (remuda_gms_releasing_bytes{gpu=~"$gpu"})`, "{{gpu}} being released"}}},
			{title: "Layouts", unit: bytes, queries: one(`sum by (gpu, tag) (remuda_gms_allocated_bytes{gpu=~"$gpu"})`, "{{gpu}} {{tag}}")},
			{title: "Sessions", unit: count, queries: one(`sum by (gpu, tag, mode) (remuda_gms_sessions{gpu=~"$gpu"})`, "{{gpu}} {{tag}} {{mode}}")},
			{title: "Layouts that the keeper lacks", unit: count, queries: one(`remuda_gms_committed{gpu=~"$gpu"} - remuda_gms_kept{gpu=~"$gpu"}`, "{{gpu}} {{tag}}")},
		}},
		{"Load", []panel{
			{title: "Busy", unit: ratio, queries: one(`remuda_device_utilization_ratio{gpu=~"$gpu"}`, "{{gpu}}")},
			{title: "Memory busy", unit: ratio, queries: one(`remuda_device_memory_utilization_ratio{gpu=~"$gpu"}`, "{{gpu}}")},
			{title: "Temperature", unit: celsius, queries: one(`remuda_device_temperature_celsius{gpu=~"$gpu"}`, "{{gpu}}")},
			{title: "Power", unit: watts, queries: []query{
				{`remuda_device_power_watts{gpu=~"$gpu"}`, "{{gpu}}"}, {`remuda_device_power_limit_watts{gpu=~"$gpu"}`, "{{gpu}} limit"}}},
			{title: "Core clock", unit: hertz, queries: one(`remuda_device_core_clock_hertz{gpu=~"$gpu"}`, "{{gpu}}")},
			{title: "Clocks kept down", unit: count, queries: one(`remuda_device_clocks_throttled{gpu=~"$gpu"} == 1`, "{{gpu}} {{reason}}")},
			{title: "PCIe", unit: bytesPerS, queries: []query{
				{`rate(remuda_device_pcie_received_bytes_total{gpu=~"$gpu"}[$__rate_interval])`, "{{gpu}} received"},
				{`rate(remuda_device_pcie_sent_bytes_total{gpu=~"$gpu"}[$__rate_interval])`, "{{gpu}} sent"}}},
			{title: "NVLink", unit: bytesPerS, queries: []query{
				{`rate(remuda_device_nvlink_received_bytes_total{gpu=~"$gpu"}[$__rate_interval])`, "{{gpu}} received"},
				{`rate(remuda_device_nvlink_sent_bytes_total{gpu=~"$gpu"}[$__rate_interval])`, "{{gpu}} sent"}}},
		}},
		{"Daemons of the nodes", []panel{
			{title: "Starts of the GPU memory service in an hour", unit: count, queries: one(`increase(remuda_gms_starts[1h])`, "{{instance}}")},
			{title: "lockd: time to write a record", unit: seconds, queries: quantiles("remuda_lockd_state_write_seconds", "", "instance")},
			{title: "Reservations", unit: perSecond, queries: one(`sum by (instance, outcome) (rate(remuda_device_reservations_total[$__rate_interval]))`, "{{instance}} {{outcome}}")},
		}},
	},
}

var failover = board{
	name: "failover", title: "Failover", description: "Failover pairs: what could take over, and what did.",
	variables: []variable{{"model", "remuda_controller_target_replicas", "model"}},
	rows: []row{
		{"Pairs", []panel{
			{title: "Pairs without a standby", unit: count, queries: one(`sum by (model) (remuda_controller_degraded_replicas{model=~"$model"})`, "{{model}}")},
			{title: "A standby is missing for", unit: seconds, queries: one(`max by (model) (remuda_controller_standby_missing_seconds{model=~"$model"})`, "{{model}}")},
			{title: "Failovers in an hour", unit: count, queries: one(`sum by (model, cause) (increase(remuda_controller_failovers_total{model=~"$model"}[1h])) > 0`, "{{model}} {{cause}}")},
			{title: "From the end of an engine until another serves", unit: seconds, queries: quantiles("remuda_engine_takeover_seconds", `{model=~"$model"}`, "cause")},
			{title: "From the end of an engine to the first token of another", unit: seconds, queries: quantiles("remuda_engine_takeover_first_token_seconds", `{model=~"$model"}`, "cause")},
			{title: "Streams continued", unit: perSecond, queries: one(`sum by (model) (rate(remuda_gateway_continuations_total{model=~"$model"}[$__rate_interval]))`, "{{model}}")},
			{title: "Attempts at engines that failed", unit: perSecond, queries: one(`sum by (kind) (rate(remuda_gateway_upstream_errors_total{model=~"$model"}[$__rate_interval]))`, "{{kind}}")},
		}},
		{"Engines", []panel{
			{title: "Engines by state", unit: count, queries: one(`sum by (role, state) (remuda_engine_state{model=~"$model"}) > 0`, "{{role}} {{state}}")},
			{title: "Changes of state", unit: perSecond, queries: one(`sum by (state) (rate(remuda_engine_transitions_total{model=~"$model"}[$__rate_interval]))`, "{{state}}")},
			{title: "Health checks that failed", unit: perSecond, queries: one(`sum by (replica, role) (rate(remuda_engine_health_failures_total{model=~"$model"}[$__rate_interval]))`, "{{replica}} {{role}}")},
			{title: "Wakes", unit: seconds, queries: quantiles("remuda_engine_wake_seconds", `{model=~"$model"}`, "")},
			{title: "Drains", unit: seconds, queries: quantiles("remuda_engine_drain_seconds", `{model=~"$model"}`, "")},
			{title: "Initialisation", unit: seconds, queries: one(`remuda_engine_init_seconds{model=~"$model"}`, "{{replica}} {{role}}")},
		}},
		{"Locks", []panel{
			{title: "Locks by state", unit: count, queries: one(`sum by (instance, state) (remuda_lockd_state)`, "{{instance}} {{state}}")},
			{title: "Grants", unit: perSecond, queries: one(`sum by (regranted) (rate(remuda_lockd_grants_total[$__rate_interval]))`, "again: {{regranted}}")},
			{title: "Holders killed", unit: perSecond, queries: one(`sum by (instance) (rate(remuda_lockd_fences_total[$__rate_interval]))`, "{{instance}}")},
			{title: "Engines that wait for a lock", unit: count, queries: one(`sum by (instance) (remuda_lockd_waiters)`, "{{instance}}")},
			{title: "Requests refused", unit: perSecond, queries: one(`sum by (code) (rate(remuda_lockd_refusals_total[$__rate_interval]))`, "{{code}}")},
			{title: "Records that could not be written", unit: perSecond, queries: one(`sum by (instance) (rate(remuda_lockd_state_write_failures_total[$__rate_interval]))`, "{{instance}}")},
		}},
	},
}

var autoscaler = board{
	name: "autoscaler", title: "Autoscaler and tiers", description: "What the policies decide and see, and replicas that go to sleep and wake.",
	variables: []variable{{"model", "remuda_controller_target_replicas", "model"}},
	rows: []row{
		{"Decisions", []panel{
			{title: "Decided, to have, and serving", unit: count, queries: []query{
				{`sum by (strategy, model) (remuda_autoscaler_target_replicas{model=~"$model"})`, "{{model}} decided by {{strategy}}"},
				{`max by (model) (remuda_controller_target_replicas{model=~"$model"})`, "{{model}} to have"},
				{`model:remuda_controller_replicas_serving:sum{model=~"$model"}`, "{{model}} serving"}}},
			{title: "Decisions", unit: perSecond, queries: one(`sum by (strategy, direction) (rate(remuda_autoscaler_decisions_total{model=~"$model"}[$__rate_interval]))`, "{{strategy}} {{direction}}")},
			{title: "Decided, by variant", unit: count, queries: one(`sum by (model, variant) (remuda_autoscaler_target_replicas{model=~"$model"})`, "{{model}} {{variant}}")},
			{title: "Slots of remuda-predictive", unit: count, queries: one(`sum by (model, of) (remuda_autoscaler_predicted_slots{model=~"$model"})`, "{{model}} {{of}}")},
			{title: "In flight and waiting", unit: count, queries: []query{
				{`sum by (model) (remuda_controller_in_flight{model=~"$model"})`, "{{model}} in flight"},
				{`sum by (model) (remuda_controller_waiting{model=~"$model"})`, "{{model}} waiting"}}},
		}},
		{"Health of the policies", []panel{
			{title: "Policies that see nothing", unit: count, queries: one(`max by (strategy, model) (remuda_autoscaler_inert{model=~"$model"})`, "{{strategy}} {{model}}")},
			{title: "Models that could not be observed", unit: perSecond, queries: one(`sum by (strategy, model) (rate(remuda_autoscaler_observe_errors_total{model=~"$model"}[$__rate_interval]))`, "{{strategy}} {{model}}")},
			{title: "States and decisions not written", unit: perSecond, queries: []query{
				{`sum by (strategy, kind) (rate(remuda_autoscaler_state_errors_total{model=~"$model"}[$__rate_interval]))`, "{{strategy}} {{kind}}"},
				{`sum by (strategy) (rate(remuda_autoscaler_decisions_unwritten_total[$__rate_interval]))`, "{{strategy}} decisions"}}},
			{title: "Duration of a call", unit: seconds, queries: quantiles("remuda_autoscaler_duration_seconds", "", "part")},
		}},
		{"Tiers", []panel{
			{title: "Replicas by tier", unit: count, queries: one(`sum by (tier) (remuda_controller_replicas{model=~"$model"})`, "{{tier}}")},
			{title: "From WARM to HOT", unit: seconds, queries: quantiles("remuda_controller_wake_seconds", "", "part")},
			{title: "From HOT to WARM", unit: seconds, queries: quantiles("remuda_controller_sleep_seconds", "", "part")},
			{title: "Evictions in 5 minutes", unit: count, queries: one(`sum by (model, kind) (increase(remuda_controller_evictions_total{model=~"$model"}[5m])) > 0`, "{{model}} {{kind}}")},
			{title: "Parked engines", unit: count, queries: one(`sum by (model) (remuda_engine_parked{model=~"$model"})`, "{{model}}")},
		}},
	},
}
