package replica

import (
	"fmt"
	"regexp"
)

// Longest names, in bytes. A model's name is a part of Nomad job IDs, Consul service IDs,
// metrics labels and URLs; nothing there is shorter than these together with a UUID.
const (
	MaxModel   = 128
	MaxVariant = 63
)

// Nomad refuses spaces and NUL in a job ID, Consul and Prometheus refuse nothing, and the
// replica's name is split at its last two colons. What is left out beyond that would have
// to be quoted in a shell, a URL or a PromQL query.
var (
	modelRule   = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:[/:][A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)*$`)
	variantRule = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$`)
)

// CheckModel says what is wrong with the name of a model, or of a pipeline, which clients
// cannot tell from one; nil if nothing is.
func CheckModel(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("is empty: must be the name that clients use in requests, such as \"llama-3-8b\"")
	case len(name) > MaxModel:
		return fmt.Errorf("is %d bytes: must be at most %d bytes", len(name), MaxModel)
	case !modelRule.MatchString(name):
		return fmt.Errorf("is %q: must be letters, digits, '.', '_' and '-', in parts separated by '/' or ':', each with a letter or digit first and last, such as \"meta-llama/Llama-3-8B\"", name)
	}
	return nil
}

// CheckVariant says what is wrong with the name of a variant, or with a replica's ID; nil
// if nothing is.
func CheckVariant(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("is empty: must be a word, such as \"h100\"")
	case len(name) > MaxVariant:
		return fmt.Errorf("is %d bytes: must be at most %d bytes", len(name), MaxVariant)
	case !variantRule.MatchString(name):
		return fmt.Errorf("is %q: must be letters, digits, '.', '_' and '-', with a letter or digit first and last, such as \"h100\"", name)
	}
	return nil
}
