package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"time"

	"remuda/device-plugin/gms/offload"
	"remuda/lockd/engine"
)

func (p *program) gmsClearVerb() verb {
	return verb{
		synopsis: "Free GPU memory that stopped engines left in the GPU memory service",
		usage:    "[flags] FILE",
		about: `Engines that share their weights leave them in the GPU memory service for the next engine. Run
this when the last engine of a failover pair has stopped for good. FILE is the record.json of
their shims, in their -record directory. Memory that another model has taken over,
and memory that a process still maps, is kept. The exit code is 0 if there is nothing to
clear, also if the service is gone and its memory is free already.`,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			timeout := fs.Duration("timeout", 10*time.Second, "`time` to wait for processes that have the memory mapped")
			return func(ctx context.Context, args []string) error {
				if len(args) != 1 {
					return usagef("expected one FILE, got %d arguments", len(args))
				}
				if *timeout <= 0 {
					return usagef("-timeout is %s: must be more than 0", *timeout)
				}
				layouts, err := readLayouts(args[0])
				if err != nil {
					return err
				}
				ctx, cancel := context.WithTimeout(ctx, *timeout)
				defer cancel()
				for _, l := range layouts {
					cleared, err := offload.Clear(ctx, l)
					switch {
					case err != nil:
						fmt.Fprintf(p.stderr, "%s: not cleared: %v\n", l.Socket, err)
					case cleared:
						fmt.Fprintf(p.stdout, "%s: cleared\n", l.Socket)
					}
				}
				return nil
			}
		},
	}
}

func readLayouts(path string) ([]offload.Layout, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // nothing was ever shared
	}
	var rec engine.Record
	if err == nil {
		err = json.Unmarshal(raw, &rec)
	}
	if err != nil {
		return nil, fmt.Errorf("read the record %s: %w", path, err)
	}
	return rec.Layouts, nil
}
