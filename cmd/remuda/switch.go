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
	{planner.PauseReconcile, false, "anything", "the controller changes nothing at all"},
	{state.SwitchDisableScaling, true, "true", "nothing but people changes the number of replicas, and nothing evicts them"},
	{state.SwitchCapMaxReplicas, true, "a number", "models have at most so many replicas, whatever they should have"},
	{state.SwitchScaleToZeroDelay, false, "a duration, or never", "how long a model's last replica is idle at least before it goes"},
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
		return fmt.Sprintf("This version looks at no switch of that name: it knows %s.", switchNames()), nil
	}
	if !forModel {
		return "", nil
	}
	models, _, err := c.Models(ctx, api.QueryOptions{})
	if err != nil || slices.ContainsFunc(models, func(m api.ModelSummary) bool { return m.Name == model }) {
		return "", err
	}
	return fmt.Sprintf("There is no model %q: it does nothing until there is.", model), nil
}

var switchList = question{
	synopsis: "List the switches that are set",
	about:    "Lists the settings that operators changed while the controller runs. The controller looks at these:\n" + switchHelp(),
	run: func(ctx context.Context, c *asker, _ []string) error {
		switches, _, err := c.Switches(ctx, api.QueryOptions{})
		if err != nil {
			return err
		}
		return c.print(list(switches), func() error {
			if len(switches) == 0 {
				fmt.Fprintln(c.out, "No switch is set.")
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
	about: "Sets a switch, as \"remuda switch set pause-reconcile true\", which has the controller change nothing until it is unset.\n" +
		"The controller looks at these:\n" + switchHelp(),
	args: []string{"NAME", "VALUE"},
	run: func(ctx context.Context, c *asker, args []string) error {
		s, err := c.SetSwitch(ctx, args[0], api.SwitchRequest{Value: args[1]})
		if err != nil {
			return err
		}
		return c.print(s, func() error {
			fmt.Fprintf(c.out, "%s is %s.\n", s.Name, s.Value)
			about, err := c.aboutSwitch(ctx, s.Name)
			if about != "" {
				fmt.Fprintln(c.out, about)
			}
			return err
		})
	},
}

var switchUnset = question{
	synopsis: "Take a switch away",
	about:    `Takes a switch away, so that the default holds again. One that is not set is no error.`,
	args:     []string{"NAME"},
	run: func(ctx context.Context, c *asker, args []string) error {
		if err := c.DeleteSwitch(ctx, args[0]); err != nil {
			return err
		}
		return c.done("%s is not set.\n", args[0])
	},
}
