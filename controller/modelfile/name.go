package modelfile

import (
	"fmt"
	"regexp"
)

// Longest names. A model's name is a part of Nomad job IDs, Consul service IDs,
// metrics labels and URLs; nothing there is shorter than these together with a UUID.
const (
	MaxModelName   = 128
	MaxVariantName = 63
)

// Nomad refuses spaces and NUL in a job ID, Consul and Prometheus refuse nothing,
// and the replica's name is split at its last two colons. What is left out beyond
// that would have to be quoted in a shell, a URL or a PromQL query.
var (
	modelName   = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:[/:][A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)*$`)
	variantName = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$`)
)

// CheckModelName says what is wrong with a model's name, or nil.
func CheckModelName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("is empty: want what clients name in their requests, as \"llama-3-8b\"")
	case len(name) > MaxModelName:
		return fmt.Errorf("has %d bytes: want at most %d", len(name), MaxModelName)
	case !modelName.MatchString(name):
		return fmt.Errorf("is %q: want letters, digits, '.', '_' and '-', in parts that '/' or ':' separate and that begin and end with a letter or digit, as \"meta-llama/Llama-3-8B\"", clip(name))
	}
	return nil
}

// CheckVariantName says what is wrong with a variant's name, or nil.
func CheckVariantName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("is empty: want a word, as \"h100\"")
	case len(name) > MaxVariantName:
		return fmt.Errorf("has %d bytes: want at most %d", len(name), MaxVariantName)
	case !variantName.MatchString(name):
		return fmt.Errorf("is %q: want letters, digits, '.', '_' and '-', a letter or digit first and last, as \"h100\"", clip(name))
	}
	return nil
}

// clip keeps a value that a message quotes short.
func clip(s string) string {
	const longest = 80
	if r := []rune(s); len(r) > longest {
		return string(r[:longest]) + "…"
	}
	return s
}
