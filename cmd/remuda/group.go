package main

import (
	"fmt"

	"github.com/hashicorp/cli"
)

// groups are the words that verbs begin with and that are none themselves, with what is
// below them.
var groups = map[string]string{
	"acl":       "Make and take away the tokens of the API",
	"acl token": "Make, list and take away tokens",
	"capacity":  "Replay decisions of the capacity analyzer",
	"decision":  "Look at what the controller decided, and why",
	"dedicated": "Look at the models that nothing evicts, and change them by hand or by the time of day",
	"device":    "Look at what this machine offers Nomad",
	"hpa":       "Replay decisions of the HPA-like autoscaler",
	"model":     "Apply, list, show, stop and start models",
	"node":      "Look at the nodes with GPUs, and keep GPUs out of use",
	"pipeline":  "Apply, list, show and stop pipelines, which are compositions of models",
	"pool":      "Look at the capacity pools",
	"queue":     "Look at the requests that wait for models and are in flight",
	"raft":      "Look at the servers of the cluster, and change them",
	"replica":   "Look at the running copies of models",
	"request":   "End single requests",
	"snapshot":  "Save, restore and check the controller's state",
	"switch":    "Change settings while the controller runs",
}

// group is a word without a verb: it says which there are.
type group struct {
	p              *program
	name, synopsis string
}

var _ cli.Command = (*group)(nil)

// Synopsis is the line in the list of commands.
func (g *group) Synopsis() string { return g.synopsis }

// Help is what stands above the list of subcommands.
func (g *group) Help() string {
	return fmt.Sprintf("Usage: remuda %s COMMAND [flags]\n\n%s.", g.name, g.synopsis)
}

// Run is called where no subcommand was named, or none that exists.
func (g *group) Run(args []string) int {
	if len(args) > 0 {
		fmt.Fprintf(g.p.stderr, "remuda %s: there is no command %q\n\n", g.name, args[0])
	}
	return cli.RunResultHelp
}
