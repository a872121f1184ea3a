package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"remuda/controller/api"
)

// showFunc reads something from the controller with the query and prints it. Its verb takes -watch
// and -verbose. The index of the meta is 0 if the controller has none for the answer.
type showFunc func(ctx context.Context, c *apiClient, args []string, q api.QueryOptions) (api.QueryMeta, error)

// Times of -watch.
const (
	// watchWait is how long a blocking query of -watch waits: after it, ages and numbers that
	// gateways report are shown anew.
	watchWait = 2 * time.Second
	// watchPoll is the time between two readings of what has no index.
	watchPoll = time.Second
)

// declareShow declares the flags of a verb that shows something, and returns what runs it.
func (c *apiClient) declareShow(fs *flag.FlagSet, show showFunc) runFunc {
	watch := fs.Bool("watch", false, "show it again whenever it changes, until Ctrl-C")
	fs.BoolVar(&c.verbose, "verbose", false, "show all columns and whole IDs")
	return func(ctx context.Context, c *apiClient, args []string) error {
		if *watch {
			return c.watch(ctx, show, args)
		}
		_, err := show(ctx, c, args, api.QueryOptions{})
		return err
	}
}

// watch shows something again whenever it changes, until the context ends.
func (c *apiClient) watch(ctx context.Context, show showFunc, args []string) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	out := c.out
	defer func() { c.out = out }()
	last, polled := "", false
	query := func(ctx context.Context, q api.QueryOptions) (api.QueryMeta, error) {
		if polled && !sleep(ctx, watchPoll) {
			return api.QueryMeta{}, ctx.Err()
		}
		var page bytes.Buffer
		c.out = &page
		meta, err := show(ctx, c, args, q)
		if err != nil {
			if !passing(err) {
				end(err)
			}
			return meta, err
		}
		if polled = meta.Index == 0; polled {
			meta.Index = 1
		}
		if page.String() != last {
			first := last == ""
			if last = page.String(); c.asJSON {
				fmt.Fprint(out, last)
			} else {
				fmt.Fprint(out, c.terminal.page(last, first))
			}
		}
		return meta, nil
	}
	failed := func(err error) {
		if !c.asJSON {
			fmt.Fprintf(out, "cannot reach the controller, retrying: %v\n", err)
		}
		last = ""
	}
	err := api.Watch(ctx, api.QueryOptions{Wait: watchWait}, query, failed)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if errors.Is(err, context.Canceled) {
		return nil // Ctrl-C is how it ends.
	}
	return err
}

// passing reports whether an error may be gone when the controller is asked again.
func passing(err error) bool {
	var refused *api.Error
	if errors.As(err, &refused) {
		return refused.Status >= 500 || refused.Status == http.StatusTooManyRequests
	}
	var network *url.Error
	return errors.As(err, &network)
}

// sleep reports whether the time has passed before the context ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// page is what shows the next page of -watch: in place of the last one on a terminal with control
// sequences, else below it.
func (c terminal) page(text string, first bool) string {
	switch {
	case c.controls:
		const home, clearLine, clearBelow = "\x1b[H", "\x1b[K", "\x1b[J"
		lines := strings.SplitAfter(text, "\n")
		if n := c.height - 2; c.height > 2 && len(lines) > c.height {
			text = strings.Join(lines[:n], "") + fmt.Sprintf("… %d more lines\n", len(lines)-1-n)
		}
		return home + strings.ReplaceAll(text, "\n", clearLine+"\n") + clearBelow
	case first:
		return text
	}
	return "\n" + text
}
