package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"remuda/controller/api"
)

// question is a verb that asks a controller. They all have the same flags for that.
type question struct {
	synopsis string
	about    string
	// args names the arguments; one in brackets may be left out, and the last may be there
	// more than once where "..." follows its name.
	args []string
	// raw: what it prints is a file, and there is no -json.
	raw bool
	// setup declares the verb's own flags and returns what runs. It may be nil where
	// run is given.
	setup func(fs *flag.FlagSet) answering
	run   answering
}

// answering is what a question does with a controller.
type answering func(ctx context.Context, c *asker, args []string) error

// asker is a controller's client with what the user wants to see.
type asker struct {
	*api.Client
	out    io.Writer
	canvas canvas
	asJSON bool
}

// asking makes a verb of a question.
func (p *program) asking(q question) verb {
	return verb{
		synopsis: q.synopsis,
		usage:    strings.TrimSpace(strings.Join(q.args, " ") + " [flags]"),
		about:    q.about,
		anywhere: true,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			run := q.run
			if q.setup != nil {
				run = q.setup(fs)
			}
			var cfg api.Config
			var address string
			c := &asker{out: p.stdout, canvas: canvasOf(p.stdout, os.Getenv)}
			fs.StringVar(&address, "address", "", "`URL` of a controller, or several separated by commas (default: $"+api.EnvAddress+", else "+api.DefaultAddress+")")
			fs.StringVar(&cfg.Token, "token", "", "the `secret` of an ACL token (default: $"+api.EnvToken+")")
			fs.StringVar(&cfg.CACert, "ca-cert", "", "`file` with the CA of the controllers' certificates (default: $"+api.EnvCACert+")")
			fs.StringVar(&cfg.ClientCert, "client-cert", "", "client certificate `file`, if the controllers require one (default: $"+api.EnvClientCert+")")
			fs.StringVar(&cfg.ClientKey, "client-key", "", "key `file` of -client-cert (default: $"+api.EnvClientKey+")")
			if !q.raw {
				fs.BoolVar(&c.asJSON, "json", false, "print JSON")
			}
			return func(ctx context.Context, args []string) error {
				if err := checkArgs(q.args, args); err != nil {
					return err
				}
				if address != "" {
					cfg.Addresses = strings.Split(address, ",")
				}
				var err error
				if c.Client, err = api.NewClient(cfg); err != nil {
					return usageError{err.Error()}
				}
				defer c.Close()
				return explain(run(ctx, c, args))
			}
		},
	}
}

// checkArgs counts arguments.
func checkArgs(names, args []string) error {
	least := 0
	for _, n := range names {
		if !strings.HasPrefix(n, "[") {
			least++
		}
	}
	most := len(names)
	if most > 0 && strings.HasSuffix(names[most-1], "...") {
		most = max(most, len(args))
	}
	if len(args) >= least && len(args) <= most {
		for i, a := range args {
			if a == "" {
				return usagef("%s is empty", strings.Trim(names[min(i, len(names)-1)], "[]."))
			}
		}
		return nil
	}
	if len(names) == 0 {
		return noArgs(args)
	}
	return usagef("expected %s, got %s", strings.Join(names, " "), plural(len(args), "argument"))
}

// explain adds to an error of the controller what to do about it.
func explain(err error) error {
	var refused *api.Error
	var op *net.OpError
	switch {
	case errors.As(err, &refused) && refused.Code == api.CodeNoToken && !strings.Contains(refused.Message, "acl bootstrap") && !strings.Contains(refused.Message, api.EnvToken):
		return fmt.Errorf("%w: set -token or %s", err, api.EnvToken)
	case errors.As(err, &op) && op.Op == "dial":
		return fmt.Errorf("%w: is \"remuda agent\" running there? Set -address or %s to its address", err, api.EnvAddress)
	}
	return err
}

// print shows v as JSON, or has human show it.
func (c *asker) print(v any, human func() error) error {
	if !c.asJSON {
		return human()
	}
	return printJSON(c.out, v)
}

// printf tells how things go, which JSON has no place for.
func (c *asker) printf(format string, args ...any) {
	if !c.asJSON {
		fmt.Fprintf(c.out, format, args...)
	}
}

// done tells that something was done that has no answer, an empty object in JSON.
func (c *asker) done(format string, args ...any) error {
	c.printf(format, args...)
	if !c.asJSON {
		return nil
	}
	return printJSON(c.out, struct{}{})
}

func printJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// list is never null in JSON.
func list[T any](l []T) []T { return append([]T{}, l...) }

// now is read once for each answer, so that all ages in it agree.
func now() time.Time { return time.Now() }
