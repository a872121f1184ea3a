package capacity

import "fmt"

// Rules say which algorithm answers.
type Rules int

// The rules. Safe is the zero value and the default.
const (
	// Safe is the upstream algorithm with its wrong answers corrected.
	Safe Rules = iota
	// WVA is the upstream algorithm as it is, wrong answers included. Pending and draining
	// replicas, bounds, sizes, ages and places are not looked at. No value of what it reads is
	// rejected, as upstream's analyzer checks none: its check of the ConfigMap lets a
	// queue_spare_trigger above its threshold pass, and does not see the result of merging two
	// entries.
	WVA
)

// ParseRules reads "safe" or "wva".
func ParseRules(s string) (Rules, error) {
	switch s {
	case "safe":
		return Safe, nil
	case "wva":
		return WVA, nil
	}
	return Safe, fmt.Errorf("rules is %q: must be safe or wva", s)
}

// String is what ParseRules reads.
func (r Rules) String() string {
	switch r {
	case Safe:
		return "safe"
	case WVA:
		return "wva"
	}
	return fmt.Sprintf("Rules(%d)", int(r))
}
