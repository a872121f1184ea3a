package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/posener/complete"

	"remuda/controller/api"
	"remuda/controller/state"
)

// envCompletion has the command line while a shell completes it ("complete -C").
const envCompletion = "COMP_LINE"

// completionTimeout bounds how long a completion waits for the controller.
const completionTimeout = 2 * time.Second

// complete answers a shell. args are the command's name, the word as the shell sees it, and the
// word before.
func (p *program) complete(args []string) {
	var out bytes.Buffer
	c := complete.New("remuda", p.completions(p.verbs()))
	c.Out = &out
	c.Complete()
	// To bash a colon ends a word, and what it gets is put in place of the last one only.
	line := os.Getenv(envCompletion)
	last := line[strings.LastIndexAny(line, " \t")+1:]
	skip := ""
	if len(args) > 1 && strings.Contains(last, ":") {
		skip = strings.TrimSuffix(last, args[1])
	}
	lines := bufio.NewScanner(&out)
	for lines.Scan() {
		fmt.Fprintln(p.stdout, strings.TrimPrefix(lines.Text(), skip))
	}
}

// completions are what the words of verbs complete to.
func (p *program) completions(verbs map[string]verb) complete.Command {
	words := complete.Commands{}
	rest := map[string]map[string]verb{} // by first word
	for name, v := range verbs {
		word, more, nested := strings.Cut(name, " ")
		switch {
		case name == gmsServeVerbName, name == simWorkerVerbName:
		case nested:
			if rest[word] == nil {
				rest[word] = map[string]verb{}
			}
			rest[word][more] = v
		default:
			words[word] = p.verbCompletion(v)
		}
	}
	for word, verbs := range rest {
		c := words[word]
		c.Sub = p.completions(verbs).Sub
		words[word] = c
	}
	return complete.Command{Sub: words}
}

func (p *program) verbCompletion(v verb) complete.Command {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	v.setup(fs)
	flags := complete.Flags{"-h": complete.PredictNothing}
	fs.VisitAll(func(f *flag.Flag) {
		value, _ := flag.UnquoteUsage(f)
		switch {
		case isBool(f):
			flags["-"+f.Name] = complete.PredictNothing
		case value == "file" || value == "directory":
			flags["-"+f.Name] = complete.PredictFiles("*")
		default:
			flags["-"+f.Name] = p.names(strings.ToUpper(value))
		}
	})
	args := complete.PredictFunc(func(a complete.Args) []string {
		n := 0 // arguments before the last one
		for i := 0; i < len(a.Completed); i++ {
			word := a.Completed[i]
			f := fs.Lookup(strings.TrimLeft(word, "-"))
			switch {
			case !strings.HasPrefix(word, "-"):
				n++
			case f != nil && !isBool(f):
				i++ // its value
			}
		}
		if len(v.args) == 0 || n >= len(v.args) && !strings.HasSuffix(v.args[len(v.args)-1], "...") {
			return nil
		}
		return p.names(v.args[min(n, len(v.args)-1)]).Predict(a)
	})
	return complete.Command{Flags: flags, Args: args}
}

func isBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// names predicts what an argument may be, by its name in the usage.
func (p *program) names(arg string) complete.Predictor {
	arg, _, _ = strings.Cut(strings.Trim(arg, "[]."), "=")
	var kinds []complete.Predictor
	for kind := range strings.SplitSeq(arg, "|") {
		switch kind, _, _ = strings.Cut(kind, "["); kind {
		case "DIR": // stands beside FILE
		case "FILE":
			kinds = append(kinds, complete.PredictFiles("*"))
		case "SWITCH":
			kinds = append(kinds, complete.PredictFunc(func(complete.Args) (names []string) {
				for _, s := range state.SwitchTypes {
					names = append(names, s.Name)
				}
				return names
			}))
		default:
			if list := lists[kind]; list != nil {
				kinds = append(kinds, complete.PredictFunc(func(a complete.Args) []string { return p.ask(list, a.Last) }))
			}
		}
	}
	return complete.PredictOr(append(kinds, complete.PredictAnything)...)
}

// ask asks the controller that the environment selects. A completion reports no errors.
func (p *program) ask(list nameList, begin string) []string {
	client, err := api.NewClient(api.Config{Timeout: completionTimeout})
	if err != nil {
		return nil
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(p.ctx, completionTimeout)
	defer cancel()
	names, err := list(ctx, &apiClient{Client: client}, begin)
	if err != nil {
		return nil
	}
	return names
}

// nameList lists the names that a word which begins so may become.
type nameList func(ctx context.Context, c *apiClient, begin string) ([]string, error)

// lists are of the names of things, by the name of the argument that names one.
var lists = map[string]nameList{
	"MODEL": func(ctx context.Context, c *apiClient, _ string) ([]string, error) {
		all, _, err := c.Models(ctx, api.QueryOptions{})
		return namesOf(all, func(m api.ModelSummary) string { return m.Name }), err
	},
	"REPLICA": func(ctx context.Context, c *apiClient, begin string) ([]string, error) {
		all, _, err := c.Replicas(ctx, "", api.QueryOptions{})
		names := namesOf(all, func(r api.Replica) string { return r.Name })
		short := c.shortNames(names)
		for i, name := range names {
			names[i] = short(name)
		}
		if begin != "" {
			names = append(names, namesOf(all, func(r api.Replica) string { return r.ID })...)
		}
		return names, err
	},
	"NODE": func(ctx context.Context, c *apiClient, begin string) ([]string, error) {
		all, _, err := c.Nodes(ctx, api.NodeFilter{}, api.QueryOptions{})
		names := namesOf(all, func(n api.Node) string { return n.Name })
		if begin != "" {
			names = append(names, namesOf(all, func(n api.Node) string { return n.ID })...)
		}
		return names, err
	},
	"GPU": func(ctx context.Context, c *apiClient, _ string) ([]string, error) {
		nodes, _, err := c.Nodes(ctx, api.NodeFilter{}, api.QueryOptions{})
		var names []string
		for _, n := range nodes {
			names = append(names, namesOf(n.GPUs, func(g api.GPU) string { return g.UUID })...)
		}
		return names, err
	},
	"PIPELINE": func(ctx context.Context, c *apiClient, _ string) ([]string, error) {
		all, _, err := c.Pipelines(ctx, api.QueryOptions{})
		return namesOf(all, func(p api.Pipeline) string { return p.Name }), err
	},
	"KEY": func(ctx context.Context, c *apiClient, _ string) ([]string, error) {
		all, _, err := c.Keys(ctx, api.QueryOptions{})
		return namesOf(all, func(k api.Key) string { return k.Name }), err
	},
	"POOL": func(ctx context.Context, c *apiClient, _ string) ([]string, error) {
		all, _, err := c.Pools(ctx, api.QueryOptions{})
		return slices.DeleteFunc(namesOf(all, func(p api.Pool) string { return p.Name }), func(name string) bool { return name == "" }), err
	},
	"GATEWAY": func(ctx context.Context, c *apiClient, _ string) ([]string, error) {
		all, err := c.Gateways(ctx)
		return namesOf(all, func(g api.Gateway) string { return g.Name }), err
	},
	"ACCESSOR": func(ctx context.Context, c *apiClient, _ string) ([]string, error) {
		all, _, err := c.Tokens(ctx, api.QueryOptions{})
		return namesOf(all, func(t api.Token) string { return t.Accessor }), err
	},
	"SERVER": func(ctx context.Context, c *apiClient, _ string) ([]string, error) {
		cfg, _, err := c.RaftConfiguration(ctx, api.QueryOptions{Stale: true})
		return namesOf(cfg.Servers, func(s api.RaftServer) string { return s.ID }), err
	},
}

func namesOf[T any](all []T, name func(T) string) []string {
	names := make([]string, len(all))
	for i, one := range all {
		names[i] = name(one)
	}
	return names
}
