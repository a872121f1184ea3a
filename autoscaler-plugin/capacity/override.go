package capacity

import (
	"errors"
	"fmt"
)

// Override changes parts of the Config for a model (upstream's per-model overrides).
type Override struct {
	// Model and Namespace say whom it is for. An empty one is any.
	Model     string `json:"model,omitzero"`
	Namespace string `json:"namespace,omitzero"`
	// What is nil stays as it is.
	KVCacheThreshold     *float64 `json:"kv_cache_threshold,omitzero"`
	QueueLengthThreshold *float64 `json:"queue_length_threshold,omitzero"`
	KVSpareTrigger       *float64 `json:"kv_spare_trigger,omitzero"`
	QueueSpareTrigger    *float64 `json:"queue_spare_trigger,omitzero"`
	StaleAfterSeconds    *float64 `json:"stale_after_seconds,omitzero"`
}

// levels of an override, the most specific last: for all, for a namespace, for a model, for
// a model in a namespace.
const levels = 4

func (o *Override) level() int {
	level := 0
	if o.Namespace != "" {
		level++
	}
	if o.Model != "" {
		level += 2
	}
	return level
}

func (o *Override) matches(model, namespace string) bool {
	return (o.Model == "" || o.Model == model) && (o.Namespace == "" || o.Namespace == namespace)
}

// Resolve returns the Config of a model. Each field is that of the most specific override
// that has it: one for the model in its namespace, then for the model, then for the
// namespace, then for all, then base. The order of overrides does not matter, but for two of
// the same model and namespace, which ValidateOverrides refuses: there the first one wins.
func Resolve(base Config, overrides []Override, model, namespace string) Config {
	if base == (Config{}) {
		base = DefaultConfig()
	}
	for level := range levels {
		for i := len(overrides) - 1; i >= 0; i-- {
			if o := &overrides[i]; o.level() == level && o.matches(model, namespace) {
				o.apply(&base)
			}
		}
	}
	return base
}

func (o *Override) apply(c *Config) {
	set := func(to *float64, from *float64) {
		if from != nil {
			*to = *from
		}
	}
	set(&c.KVCacheThreshold, o.KVCacheThreshold)
	set(&c.QueueLengthThreshold, o.QueueLengthThreshold)
	set(&c.KVSpareTrigger, o.KVSpareTrigger)
	set(&c.QueueSpareTrigger, o.QueueSpareTrigger)
	set(&c.StaleAfterSeconds, o.StaleAfterSeconds)
}

// ValidateOverrides names every override that is there twice, and every field with which an
// override makes a Config that is none.
func ValidateOverrides(base Config, overrides []Override) error {
	type who struct{ model, namespace string }
	first := map[who]int{}
	var errs []error
	for i := range overrides {
		o := &overrides[i]
		at := fmt.Sprintf("overrides[%d]", i)
		if j, twice := first[who{o.Model, o.Namespace}]; twice {
			errs = append(errs, &FieldError{Field: at, Problem: fmt.Sprintf("is for model %q in namespace %q: duplicate of overrides[%d]", o.Model, o.Namespace, j)})
			continue
		}
		first[who{o.Model, o.Namespace}] = i
		c := Resolve(base, overrides, o.Model, o.Namespace)
		errs = append(errs, asErrors(Safe, c.problems(at+".")))
	}
	return errors.Join(errs...)
}
