package capacity

import (
	"errors"
	"fmt"
	"math"

	"remuda/autoscaler-plugin/measure"
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
}

// DefaultStaleAfterSeconds is the seed's query window: a peak of the last minute is no peak
// of it once it is older.
const DefaultStaleAfterSeconds = 60

// DefaultConfig returns the seed's defaults.
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

// good is Validate without words.
func (c *Config) good() bool {
	return c.KVCacheThreshold > 0 && c.KVCacheThreshold <= 1 &&
		c.QueueLengthThreshold > 0 && c.QueueLengthThreshold <= math.MaxFloat64 &&
		c.KVSpareTrigger >= 0 && c.KVSpareTrigger <= c.KVCacheThreshold &&
		c.QueueSpareTrigger >= 0 && c.QueueSpareTrigger <= c.QueueLengthThreshold &&
		c.StaleAfterSeconds >= 0 && c.StaleAfterSeconds <= math.MaxFloat64
}

// Validate names every field that is out of its range, each as a *FieldError.
func (c Config) Validate() error { return errors.Join(c.faults("")...) }

func (c Config) faults(prefix string) []error {
	var errs []error
	check := func(ok bool, field string, x float64, want string) {
		if !ok {
			errs = append(errs, &FieldError{Field: prefix + field, Problem: fmt.Sprintf("is %s: want %s", measure.Text(x), want)})
		}
	}
	check(c.KVCacheThreshold > 0 && c.KVCacheThreshold <= 1, "kv_cache_threshold", c.KVCacheThreshold, "more than 0 and at most 1, a share of the KV cache")
	check(c.QueueLengthThreshold > 0 && finite(c.QueueLengthThreshold), "queue_length_threshold", c.QueueLengthThreshold, "more than 0 waiting requests")
	check(c.KVSpareTrigger >= 0 && !(c.KVSpareTrigger > c.KVCacheThreshold), "kv_spare_trigger", c.KVSpareTrigger,
		"0 to the kv_cache_threshold, "+measure.Text(c.KVCacheThreshold))
	check(c.QueueSpareTrigger >= 0 && !(c.QueueSpareTrigger > c.QueueLengthThreshold), "queue_spare_trigger", c.QueueSpareTrigger,
		"0 to the queue_length_threshold, "+measure.Text(c.QueueLengthThreshold))
	check(c.StaleAfterSeconds >= 0 && finite(c.StaleAfterSeconds), "stale_after_seconds", c.StaleAfterSeconds, "0 seconds, which is the default, or more")
	return errs
}
