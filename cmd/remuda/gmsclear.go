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
)

func (p *program) gmsClearVerb() verb {
	return verb{
		synopsis: "Clear away what stopped engines have left with the GPU memory service",
		usage:    "[flags] FILE",
		about: `Engines that share their weights leave them with the GPU memory service, for whoever comes next. Run this
once the last of a failover pair is stopped for good: FILE is the note that their shims have written (their -park
file with .gms after it). What another model has there by now stays, and so does what somebody has mapped. It
exits with 0 where there is nothing to clear, also where the service is gone: its memory is free then.`,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			timeout := fs.Duration("timeout", 10*time.Second, "`time` to wait for those who have the memory mapped")
			return func(ctx context.Context, args []string) error {
				if len(args) != 1 {
					return usagef("want exactly one FILE, got %d arguments", len(args))
				}
				if *timeout <= 0 {
					return usagef("-timeout is %s: want more than 0", *timeout)
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
						fmt.Fprintf(p.stderr, "%s: left as it is: %v\n", l.Socket, err)
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
	var layouts []offload.Layout
	if err == nil {
		err = json.Unmarshal(raw, &layouts)
	}
	if err != nil {
		return nil, fmt.Errorf("read what is to be cleared: %s: %w", path, err)
	}
	return layouts, nil
}
