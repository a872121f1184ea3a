package plugin

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Settings are the flat maps of strings in which nomad-autoscaler hands configuration to its
// plugins: the config block of a plugin, and that of a check or a target, which goes over it.
// It takes values out of them and collects what is wrong, so that nothing is misread in silence:
// an unknown key is rejected by its name together with the known ones, and every bad value is
// named at once. It is for one goroutine.
type Settings struct {
	values map[string]string
	asked  map[string]bool
	errs   []error
}

// ReadSettings starts with the maps, the later ones over the earlier ones. A key whose value is
// empty in a later map takes the earlier value away.
func ReadSettings(layers ...map[string]string) *Settings {
	r := &Settings{values: map[string]string{}, asked: map[string]bool{}}
	for _, l := range layers {
		for k, v := range l {
			r.values[k] = strings.TrimSpace(v)
		}
	}
	return r
}

// nomadKeys are those that nomad-autoscaler adds by itself (agent/plugins.go merges the
// agent's Nomad configuration into every plugin's, plugins/shared/util.go and sdk/target.go
// name the others, policy/handler.go reads dry-run).
var nomadKeys = []string{"Namespace", "Job", "Group", "dry-run", "datacenter", "node_class", "node_pool"}

func foreign(key string) bool {
	return strings.HasPrefix(key, "nomad_") || strings.HasPrefix(key, "_nomad_autoscaler_") || slices.Contains(nomadKeys, key)
}

func (r *Settings) take(key string) (string, bool) {
	r.asked[key] = true
	v := r.values[key]
	return v, v != ""
}

// Fault notes that a value cannot be used.
func (r *Settings) Fault(key string, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s "+format, append([]any{key}, args...)...))
}

// Text returns a value, or what stands for it where there is none.
func (r *Settings) Text(key, otherwise string) string {
	if v, ok := r.take(key); ok {
		return v
	}
	return otherwise
}

// Default gives a value where there is none.
func (r *Settings) Default(key, value string) {
	if r.values[key] == "" {
		r.values[key] = value
	}
}

// Set tells whether a value is there.
func (r *Settings) Set(key string) bool {
	_, ok := r.take(key)
	return ok
}

// Word returns a value that must be one of some words, of which the first is the default.
func (r *Settings) Word(key string, words ...string) string {
	v, ok := r.take(key)
	switch {
	case !ok:
		return words[0]
	case !slices.Contains(words, v):
		r.Fault(key, "is %q: must be %s", v, strings.Join(words, " or "))
		return words[0]
	}
	return v
}

// Number returns a number from low to high.
func (r *Settings) Number(key string, otherwise, low, high float64) float64 {
	v, ok := r.take(key)
	if !ok {
		return otherwise
	}
	f, err := strconv.ParseFloat(v, 64)
	if err != nil || math.IsNaN(f) || f < low || f > high {
		r.Fault(key, "is %q: must be a number from %v to %v", v, low, high)
		return otherwise
	}
	return f
}

// Whole returns a whole number from low to high.
func (r *Settings) Whole(key string, otherwise, low, high int) int {
	v, ok := r.take(key)
	if !ok {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < low || n > high {
		r.Fault(key, "is %q: must be a whole number from %d to %d", v, low, high)
		return otherwise
	}
	return n
}

// Switch returns true or false.
func (r *Settings) Switch(key string, otherwise bool) bool {
	v, ok := r.take(key)
	if !ok {
		return otherwise
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		r.Fault(key, "is %q: must be true or false", v)
		return otherwise
	}
	return b
}

// Duration returns a time from low to high.
func (r *Settings) Duration(key string, otherwise, low, high time.Duration) time.Duration {
	v, ok := r.take(key)
	if !ok {
		return otherwise
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < low || d > high {
		r.Fault(key, "is %q: must be a time from %s to %s, such as \"30s\"", v, low, high)
		return otherwise
	}
	return d
}

// Parsed hands a value, where there is one, to whoever reads it.
func (r *Settings) Parsed(key string, parse func(string) error) {
	v, ok := r.take(key)
	if !ok {
		return
	}
	if err := parse(v); err != nil {
		r.Fault(key, "is invalid: %w", err)
	}
}

// Err names every bad value, and every key that was not asked for and that is not
// nomad-autoscaler's own. Call it last.
func (r *Settings) Err() error {
	var unknown, known []string
	for k := range r.values {
		if !r.asked[k] && !foreign(k) {
			unknown = append(unknown, k)
		}
	}
	for k := range r.asked {
		known = append(known, k)
	}
	slices.Sort(unknown)
	slices.Sort(known)
	errs := slices.Clone(r.errs)
	for _, k := range unknown {
		errs = append(errs, fmt.Errorf("%s is an unknown key: must be one of %s", k, strings.Join(known, ", ")))
	}
	return errors.Join(errs...)
}
