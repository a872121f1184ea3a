package main

import (
	"fmt"

	"github.com/hashicorp/cli"
)

// groups are the words that begin verbs and are not verbs themselves, with a synopsis of their
// verbs.
var groups = map[string]string{
	"acl":       "Manage the API's ACL tokens",
	"acl token": "Create, list and delete tokens",
	"capacity":  "Explain decisions of the capacity analyzer",
	"decision":  "Show the controller's decisions and reasons",
	"dedicated": "Manage the set of dedicated models and its schedule",
	"device":    "Diagnose the GPUs of this machine",
	"hpa":       "Replay decisions of the HPA strategy",
	"key":       "Manage the API keys of clients and their limits",
	"model":     "Apply, list, show, stop and start models",
	"node":      "Show nodes with GPUs, and cordon or uncordon GPUs",
	"pipeline":  "Apply, list, show and delete pipelines (compositions of models)",
	"pool":      "Show the capacity pools",
	"queue":     "Show waiting and running requests",
	"raft":      "Show and change the servers of the cluster",
	"replica":   "Show the replicas of models",
	"request":   "Kill single requests",
	"snapshot":  "Save, restore and inspect the controller's state",
	"switch":    "Change settings while the controller runs",
}

// group is the command of a word in groups. It lists the verbs that begin with it.
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
		fmt.Fprintf(g.p.stderr, "remuda %s: no command %q%s\n\n", g.name, args[0], g.p.suggest(g.name+" "+args[0]))
	}
	return cli.RunResultHelp
}
