package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"remuda/lockd/client"
	"remuda/lockd/wire"
)

func (p *program) lockdStatusVerb() verb {
	return verb{
		synopsis: "Show the locks of a lockd",
		usage:    "-lock ADDR [-json]",
		about: `Lists the locks of the node: one for each engine, named as its service in Consul, and one for
each failover pair, with the engine that waits.`,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			cfg := client.DefaultConfig()
			var asJSON bool
			files := tlsFiles{prefix: "lock-tls"}
			fs.StringVar(&cfg.Addr, "lock", "", "`address` of lockd: a socket path, or tcp://host:port (required)")
			files.declare(fs, "-lock over TCP", "lockd's certificate")
			fs.BoolVar(&asJSON, "json", false, "print JSON")
			return func(ctx context.Context, args []string) error {
				if err := noArgs(args); err != nil {
					return err
				}
				if cfg.Addr == "" {
					return usagef("-lock is required: the path of lockd's socket")
				}
				var err error
				if cfg.TLS, err = files.client(); err != nil {
					return err
				}
				ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
				groups, err := client.Status(ctx, cfg)
				if err != nil {
					return err
				}
				if asJSON {
					return json.NewEncoder(p.stdout).Encode(append([]wire.Group{}, groups...))
				}
				if len(groups) == 0 {
					fmt.Fprintln(p.stdout, "No locks.")
					return nil
				}
				w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
				fmt.Fprintln(w, "GROUP\tSTATE\tHOLDER\tTOKEN\tPID\tSINCE\tWAITERS")
				for _, g := range groups {
					since, pid := "-", "-"
					if g.Since != nil {
						since = g.Since.Local().Format(time.RFC3339)
					}
					if g.PID != 0 {
						pid = fmt.Sprint(g.PID)
					}
					waiters := strings.Join(g.Waiters, ", ")
					if more := g.Waiting - len(g.Waiters); more > 0 {
						waiters += fmt.Sprintf(" and %d more", more)
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\n", g.Group, g.State, dash(g.Holder), g.Token, pid, since, dash(waiters))
				}
				return w.Flush()
			}
		},
	}
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
