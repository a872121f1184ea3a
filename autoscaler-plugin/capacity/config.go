package capacity

import (
	"fmt"

	"remuda/autoscaler-plugin/enginemetrics"
)

// Config holds the thresholds of a model. The zero Config stands for DefaultConfig.
type Config struct {
	// KVCacheThreshold: a replica with this share of its KV cache in use, or more, is
	// saturated. Above 0, at most 1.
	KVCacheThreshold float64 `json:"kv_cache_threshold"`
	// QueueLengthThreshold: a replica with so many requests waiting, or more, is saturated.
	// Above 0.
	QueueLengthThreshold float64 `json:"queue_length_threshold"`
	// KVSpareTrigger: below this average of spare KV cache (threshold minus usage) the model
	// grows. From 0 to KVCacheThreshold.
	KVSpareTrigger float64 `json:"kv_spare_trigger"`
	// QueueSpareTrigger: below this average of spare queue places the model grows. From 0 to
	// QueueLengthThreshold.
	QueueSpareTrigger float64 `json:"queue_spare_trigger"`
	// StaleAfterSeconds: metrics older than this, or as much ahead of the clock, are unknown.
	// 0 is DefaultStaleAfterSeconds. Only Safe looks at it.
	StaleAfterSeconds float64 `json:"stale_after_seconds,omitzero"`
	// GrowthPercent is how many replicas may be added to those that serve while they start, as a
	// share of them in percent, at least one: as many as the present load needs at the triggers.
	// 0 is one replica at a time, as upstream. Only Safe looks at it.
	GrowthPercent int `json:"growth_percent,omitzero"`
}

// DefaultStaleAfterSeconds is upstream's query window: a peak of the last minute is no peak
// of it once it is older.
const DefaultStaleAfterSeconds = 60

// DefaultConfig returns upstream's defaults.
func DefaultConfig() Config {
	return Config{KVCacheThreshold: 0.80, QueueLengthThreshold: 5, KVSpareTrigger: 0.1, QueueSpareTrigger: 3}
}

// orDefault replaces the zero Config.
func (c Config) orDefault() Config {
	if c == (Config{}) {
		c = DefaultConfig()
	}
	if c.StaleAfterSeconds == 0 {
		c.StaleAfterSeconds = DefaultStaleAfterSeconds
	}
	return c
}

// Validate names every field that is out of its range, each as a *FieldError.
func (c Config) Validate() error { return asErrors(Safe, c.problems("")) }

// problems are the fields that are out of their ranges.
func (c *Config) problems(prefix string) []Note {
	var all []Note
	bad := func(field string, x float64, want, effect string, skipped bool) {
		if skipped {
			effect += "; the autoscaler skips an entry of its ConfigMap that has this value"
		}
		all = append(all, Note{Field: prefix + field, Problem: fmt.Sprintf("is %s: must be %s", enginemetrics.Text(x), want), Effect: effect})
	}
	if x := c.KVCacheThreshold; !(x > 0 && x <= 1) {
		bad("kv_cache_threshold", x, "more than 0 and at most 1, a share of the KV cache",
			thresholdEffect(x, "an empty KV cache saturates a replica", "a full KV cache does not saturate a replica"), x < 0 || x > 1)
	}
	if x := c.QueueLengthThreshold; !(x > 0 && finite(x)) {
		bad("queue_length_threshold", x, "more than 0 waiting requests",
			thresholdEffect(x, "an empty queue saturates a replica", "no queue saturates a replica"), x < 0)
	}
	if x := c.KVSpareTrigger; !(x >= 0 && !(x > c.KVCacheThreshold)) {
		bad("kv_spare_trigger", x, "0 to kv_cache_threshold, which is "+enginemetrics.Text(c.KVCacheThreshold),
			triggerEffect(x, "KV cache"), x < 0 || x > 1 || x > c.KVCacheThreshold)
	}
	if x := c.QueueSpareTrigger; !(x >= 0 && !(x > c.QueueLengthThreshold)) {
		bad("queue_spare_trigger", x, "0 to queue_length_threshold, which is "+enginemetrics.Text(c.QueueLengthThreshold),
			triggerEffect(x, "queue"), x < 0)
	}
	if x := c.StaleAfterSeconds; !(x >= 0 && finite(x)) {
		bad("stale_after_seconds", x, "0 seconds (the default) or more", "", false)
	}
	if n := c.GrowthPercent; n < 0 || n > MaxGrowthPercent {
		all = append(all, Note{Field: prefix + "growth_percent", Problem: fmt.Sprintf("is %d: must be 0 to %d", n, MaxGrowthPercent)})
	}
	return all
}

// MaxGrowthPercent is a growth to eleven times the replicas that serve.
const MaxGrowthPercent = 1000

// thresholdEffect is what WVA makes of a threshold that is out of its range.
func thresholdEffect(x float64, low, high string) string {
	switch {
	case x <= 0:
		return low
	case x > 0:
		return high
	}
	return "no comparison with it is true: it saturates no replica, and no removal is safe"
}

// triggerEffect is what WVA makes of a trigger that is out of its range.
func triggerEffect(x float64, what string) string {
	switch {
	case x > 0:
		return "even an empty " + what + " has less to spare: the model needs more whenever a replica reports, and no removal is safe"
	case x <= 0:
		return "the spare " + what + " is never below it, so that the " + what + " alone never makes the model grow"
	}
	return "no comparison with it is true: the " + what + " alone never makes the model grow, and no removal is safe"
}
