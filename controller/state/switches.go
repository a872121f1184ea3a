package state

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The switches that the controller knows. Those of SwitchDisableScaling and
// SwitchCapMaxReplicas are also there for one model, as "disable-scaling/llama". Other
// names may be set to anything, and mean nothing to it.
const (
	// SwitchDisableScaling, "true": nothing but people changes the number of replicas.
	SwitchDisableScaling = "disable-scaling"
	// SwitchCapMaxReplicas is how many replicas a model has at most, whatever it should
	// have; 0 or more.
	SwitchCapMaxReplicas = "cap-max-replicas"
	// SwitchScaleToZeroDelay is how long a model's last replica is idle at least before
	// it goes, as "30m"; "never" keeps it.
	SwitchScaleToZeroDelay = "scale-to-zero-delay"
)

// switchNever is the value of SwitchScaleToZeroDelay that keeps the last replica.
const switchNever = "never"

// SwitchFor returns the name of a switch for one model.
func SwitchFor(name, model string) string { return name + "/" + model }

// checkSwitch returns what is wrong with the value of a switch; switches that are not
// known have any.
func checkSwitch(name, value string) error {
	base, model, forModel := strings.Cut(name, "/")
	switch base {
	case SwitchDisableScaling:
		if value != "true" {
			return fmt.Errorf("switch %q is %q: must be true, or unset (\"remuda switch unset\")", name, value)
		}
	case SwitchCapMaxReplicas:
		if _, ok := parseCap(value); !ok {
			return fmt.Errorf("switch %q is %q: must be a whole number of replicas, 0 or more", name, value)
		}
	case SwitchScaleToZeroDelay:
		if forModel {
			return fmt.Errorf("switch %q: %s applies to all models: it cannot be set for one model", name, base)
		}
		if _, _, ok := parseDelay(value); !ok {
			return fmt.Errorf("switch %q is %q: must be a duration of 0 or more, such as 30m, or %s", name, value, switchNever)
		}
	default:
		return nil
	}
	if forModel && model == "" {
		return fmt.Errorf("switch %q: missing model after the '/'", name)
	}
	return nil
}

func parseCap(value string) (n int, ok bool) {
	n, err := strconv.Atoi(value)
	return n, err == nil && n >= 0
}

func parseDelay(value string) (d time.Duration, never, ok bool) {
	if value == switchNever {
		return 0, true, true
	}
	d, err := time.ParseDuration(value)
	return d, false, err == nil && d >= 0
}

func isOn(value string) bool {
	on, err := strconv.ParseBool(value)
	return value != "" && (on || err != nil)
}

// switchValue is View.Switch inside of a command.
func (t *txn) switchValue(name string) string {
	if s := first[Switch](t.Txn, TableSwitches, byID, name); s != nil {
		return s.Value
	}
	return ""
}
