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

// apiCommand is a verb that sends requests to a controller. All of them have the same flags for the
// connection.
type apiCommand struct {
	synopsis string
	about    string
	// args names the arguments. One in brackets is optional. The last may be repeated if "..."
	// follows its name.
	args []string
	// raw: the output is a file, and there is no -json.
	raw bool
	// setup declares the verb's own flags and returns the function to run. It may be nil if run
	// is set.
	setup func(fs *flag.FlagSet) runFunc
	run   runFunc
	// show, or setupShow with flags of its own, takes the place of setup and run for a verb that
	// shows what the controller has.
	show      showFunc
	setupShow func(fs *flag.FlagSet) showFunc
}

// runFunc runs an apiCommand with a client of a controller.
type runFunc func(ctx context.Context, c *apiClient, args []string) error

// apiClient is a client of a controller with the output options of the user.
type apiClient struct {
	*api.Client
	out      io.Writer
	terminal terminal
	asJSON   bool
	// verbose: tables have all columns and whole IDs.
	verbose bool
}

// apiVerb returns the verb of an apiCommand.
func (p *program) apiVerb(cmd apiCommand) verb {
	return verb{
		synopsis: cmd.synopsis,
		args:     cmd.args,
		usage:    strings.TrimSpace(strings.Join(cmd.args, " ") + " [flags]"),
		about:    cmd.about,
		anywhere: true,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			c := &apiClient{out: p.stdout, terminal: terminalOf(p.stdout, os.Getenv)}
			run, show := cmd.run, cmd.show
			if cmd.setup != nil {
				run = cmd.setup(fs)
			}
			if cmd.setupShow != nil {
				show = cmd.setupShow(fs)
			}
			if show != nil {
				run = c.declareShow(fs, show)
			}
			var cfg api.Config
			var address string
			fs.StringVar(&address, "address", "", "`URL` of a controller, or several separated by commas (default: $"+api.EnvAddress+", else "+api.DefaultAddress+")")
			fs.StringVar(&cfg.Token, "token", "", "the `secret` of an ACL token (default: $"+api.EnvToken+")")
			fs.StringVar(&cfg.CACert, "ca-cert", "", "`file` with the CA of the controllers' certificates (default: $"+api.EnvCACert+")")
			fs.StringVar(&cfg.ClientCert, "client-cert", "", "client certificate `file`, if the controllers require one (default: $"+api.EnvClientCert+")")
			fs.StringVar(&cfg.ClientKey, "client-key", "", "key `file` of -client-cert (default: $"+api.EnvClientKey+")")
			if !cmd.raw {
				fs.BoolVar(&c.asJSON, "json", false, "print JSON")
			}
			return func(ctx context.Context, args []string) error {
				if err := checkArgs(cmd.args, args); err != nil {
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

// checkArgs checks the number of arguments, and that none is empty.
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

// explain adds advice to an error of the controller.
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

// print prints v as JSON, or calls human to print it.
func (c *apiClient) print(v any, human func() error) error {
	if !c.asJSON {
		return human()
	}
	return printJSON(c.out, v)
}

// printf prints progress. It prints nothing with -json.
func (c *apiClient) printf(format string, args ...any) {
	if !c.asJSON {
		fmt.Fprintf(c.out, format, args...)
	}
}

// done reports the success of a request without a result: an empty object in JSON.
func (c *apiClient) done(format string, args ...any) error {
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
