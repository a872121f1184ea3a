package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"remuda/controller/api"
	"remuda/controller/planner"
	"remuda/controller/state"
)

func (p *program) switchVerbs() map[string]verb {
	return map[string]verb{
		"switch list":  p.asking(switchList),
		"switch set":   p.asking(switchSet),
		"switch unset": p.asking(switchUnset),
	}
}

// knownSwitch is a switch that the controller looks at.
type knownSwitch struct {
	name string
	// perModel: there is one of each model as well, NAME/MODEL.
	perModel bool
	// values and about say what it may be and what it does.
	values, about string
}

// switches are those that the controller looks at.
var switches = []knownSwitch{
	{planner.PauseReconcile, false, "any value", "the controller changes nothing while it is set"},
	{state.SwitchDisableScaling, true, "true", "only operators change the number of replicas, and nothing evicts them"},
	{state.SwitchCapMaxReplicas, true, "a number", "upper limit on the replicas of a model"},
	{state.SwitchScaleToZeroDelay, false, "a duration, or never", "minimum idle time of a model's last replica before it is removed"},
}

// switchHelp lists the switches, one a line.
func switchHelp() string {
	var b strings.Builder
	for _, s := range switches {
		name := s.name
		if s.perModel {
			name += "[/MODEL]"
		}
		fmt.Fprintf(&b, "\n  %-27s%s: %s", name, s.values, s.about)
	}
	return b.String()
}

// switchNames lists the names of the switches.
func switchNames() string {
	var names []string
	for _, s := range switches {
		names = append(names, s.name)
	}
	return strings.Join(names, ", ")
}

// about tells of a switch what may have been meant otherwise; empty where all is well.
func (c *asker) aboutSwitch(ctx context.Context, name string) (string, error) {
	base, model, forModel := strings.Cut(name, "/")
	i := slices.IndexFunc(switches, func(s knownSwitch) bool { return s.name == base && (!forModel || s.perModel) })
	if i < 0 {
		return fmt.Sprintf("Warning: unknown switch, it has no effect. Known switches: %s.", switchNames()), nil
	}
	if !forModel {
		return "", nil
	}
	models, _, err := c.Models(ctx, api.QueryOptions{})
	if err != nil || slices.ContainsFunc(models, func(m api.ModelSummary) bool { return m.Name == model }) {
		return "", err
	}
	return fmt.Sprintf("Warning: model %q does not exist: the switch has no effect until it does.", model), nil
}

var switchList = question{
	synopsis: "List the switches that are set",
	about:    "Lists the switches that are set: settings that operators change at run time. Known switches:\n" + switchHelp(),
	run: func(ctx context.Context, c *asker, _ []string) error {
		switches, _, err := c.Switches(ctx, api.QueryOptions{})
		if err != nil {
			return err
		}
		return c.print(list(switches), func() error {
			if len(switches) == 0 {
				fmt.Fprintln(c.out, "No switches are set.")
				return nil
			}
			t := newTable(c.out, "NAME", "VALUE")
			for _, s := range switches {
				t.row(s.Name, s.Value)
			}
			return t.flush()
		})
	},
}

var switchSet = question{
	synopsis: "Set a switch",
	about: "Sets a switch. For example, \"remuda switch set pause-reconcile true\" pauses the controller until the\nswitch is unset.\n" +
		"\nKnown switches:\n" + switchHelp(),
	args: []string{"NAME", "VALUE"},
	run: func(ctx context.Context, c *asker, args []string) error {
		s, err := c.SetSwitch(ctx, args[0], api.SwitchRequest{Value: args[1]})
		if err != nil {
			return err
		}
		return c.print(s, func() error {
			fmt.Fprintf(c.out, "%s = %s\n", s.Name, s.Value)
			about, err := c.aboutSwitch(ctx, s.Name)
			if about != "" {
				fmt.Fprintln(c.out, about)
			}
			return err
		})
	},
}

var switchUnset = question{
	synopsis: "Unset a switch",
	about:    `Unsets a switch, so that its default applies again. It is not an error if the switch is not set.`,
	args:     []string{"NAME"},
	run: func(ctx context.Context, c *asker, args []string) error {
		if err := c.DeleteSwitch(ctx, args[0]); err != nil {
			return err
		}
		return c.done("%s is unset.\n", args[0])
	},
}
