package state

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"remuda/internal/closest"
)

// The switches.
const (
	// SwitchPauseReconcile, set to anything: the planner and the reconciler do nothing.
	SwitchPauseReconcile = "pause-reconcile"
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

// SwitchType describes a switch.
type SwitchType struct {
	Name string
	// PerModel: the switch can be set for one model, too, as "disable-scaling/llama".
	PerModel bool
	// Values and About describe for people which values the switch takes, and what it does.
	Values, About string
	// invalid returns why the switch cannot have a value, empty if it can.
	invalid func(value string) string
}

// SwitchTypes are all switches that the controller reads.
var SwitchTypes = []SwitchType{
	{
		SwitchPauseReconcile, false, "any value", "the controller changes nothing while it is set",
		func(value string) string {
			switch strings.ToLower(value) {
			case "", "false", "off", "no", "0":
				return fmt.Sprintf("the controller pauses while the switch is set, whatever its value: run \"remuda switch unset %s\" to end the pause", SwitchPauseReconcile)
			}
			return ""
		},
	},
	{
		SwitchDisableScaling, true, "true", "only operators change the number of replicas, and nothing evicts them",
		mustBe("true, or unset (\"remuda switch unset\")", func(value string) bool { return value == "true" }),
	},
	{
		SwitchCapMaxReplicas, true, "a number", "upper limit on the replicas of a model",
		mustBe("a whole number of replicas, 0 or more", func(value string) bool { _, ok := parseCap(value); return ok }),
	},
	{
		SwitchScaleToZeroDelay, false, "a duration, or never", "minimum idle time of a model's last replica before it is removed",
		mustBe("a duration of 0 or more, such as 30m, or "+switchNever, func(value string) bool { _, _, ok := parseDelay(value); return ok }),
	},
}

func mustBe(what string, valid func(value string) bool) func(value string) string {
	return func(value string) string {
		if valid(value) {
			return ""
		}
		return "must be " + what
	}
}

// SwitchFor returns the name of a switch for one model.
func SwitchFor(name, model string) string { return name + "/" + model }

// CheckSwitch returns why an operator cannot set a switch to a value: the name is unknown,
// or the value is not one of the switch. It is for requests: a command in the log is applied
// as it is, so that later rules do not change what a replayed log makes.
func CheckSwitch(name, value string) error {
	base, model, forModel := strings.Cut(name, "/")
	i := slices.IndexFunc(SwitchTypes, func(s SwitchType) bool { return s.Name == base })
	if i < 0 {
		var names, shown []string
		for _, s := range SwitchTypes {
			names = append(names, s.Name)
			shown = append(shown, s.Usage())
		}
		hint := ""
		if near := closest.Word(base, names); near != "" {
			hint = fmt.Sprintf(", did you mean %q?", near)
		}
		return fmt.Errorf("unknown switch %q%s: must be one of %s", name, hint, strings.Join(shown, ", "))
	}
	s := &SwitchTypes[i]
	switch {
	case forModel && !s.PerModel:
		return fmt.Errorf("switch %q: %s applies to all models: it cannot be set for one model", name, base)
	case forModel && model == "":
		return fmt.Errorf("switch %q: missing model after the '/'", name)
	}
	if why := s.invalid(value); why != "" {
		return fmt.Errorf("switch %q is %q: %s", name, value, why)
	}
	return nil
}

// Usage returns the name as in "disable-scaling[/MODEL]".
func (s SwitchType) Usage() string {
	if s.PerModel {
		return s.Name + "[/MODEL]"
	}
	return s.Name
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
