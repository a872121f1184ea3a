package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"remuda/controller/api"
	"remuda/controller/state"
	"remuda/internal/bytesize"
)

func (p *program) snapshotVerbs() map[string]verb {
	return map[string]verb{
		"snapshot save":    p.apiVerb(snapshotSave),
		"snapshot restore": p.apiVerb(snapshotRestore),
		"snapshot inspect": p.snapshotInspectVerb(),
	}
}

var snapshotSave = apiCommand{
	synopsis: "Save the controller's state to a file",
	about: `Writes the whole state to a file, which appears under its name only once it is checked. The
file contains the hashes of ACL tokens, and the key that the shims of all replicas obey: keep it
private.`,
	args: []string{"FILE"},
	setup: func(fs *flag.FlagSet) runFunc {
		stale := fs.Bool("stale", false, "read from this server, even if it has lost its leader")
		return func(ctx context.Context, c *apiClient, args []string) error {
			info, err := saveSnapshot(args[0], func(w io.Writer) error {
				return c.SaveSnapshot(ctx, w, api.QueryOptions{Stale: *stale})
			})
			if err != nil {
				return err
			}
			return c.print(info, func() error {
				fmt.Fprintf(c.out, "%s: saved, %s at index %d.\n", args[0], bytesize.Text(info.Bytes), info.Index)
				return nil
			})
		}
	},
}

// saveSnapshot writes a file that is whole, or none.
func saveSnapshot(path string, save func(io.Writer) error) (info state.SnapshotInfo, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return info, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	defer f.Close()
	if err := save(f); err != nil {
		return info, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return info, err
	}
	if info, err = state.Inspect(f, state.FeatureLevel); err != nil {
		return info, fmt.Errorf("the response is not a snapshot: %w", err)
	}
	if err := f.Sync(); err != nil {
		return info, err
	}
	return info, os.Rename(f.Name(), path)
}

var snapshotRestore = apiCommand{
	synopsis: "Replace the controller's state with a saved one",
	about: `Replaces the state of the whole cluster (models, replicas, switches and tokens) with a
snapshot. The controller then adopts running jobs and follows the restored state. A damaged
file, or one that needs a higher feature level than a server has, is rejected and changes
nothing.`,
	args: []string{"FILE"},
	run: func(ctx context.Context, c *apiClient, args []string) error {
		f, err := os.Open(args[0])
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := state.Inspect(f, state.FeatureLevel); err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		info, err := c.RestoreSnapshot(ctx, f)
		if err != nil {
			return err
		}
		return c.print(info, func() error {
			fmt.Fprintf(c.out, "%s: restored, %s of index %d.\n", args[0], bytesize.Text(info.Bytes), info.Index)
			return nil
		})
	},
}

func (p *program) snapshotInspectVerb() verb {
	return verb{
		synopsis: "Check a snapshot and show its contents",
		usage:    "FILE [-json]",
		about:    `Reads and checks a whole snapshot, and shows its contents. It contacts no server.`,
		anywhere: true,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			asJSON := fs.Bool("json", false, "print JSON")
			return func(_ context.Context, args []string) error {
				if err := checkArgs([]string{"FILE"}, args); err != nil {
					return err
				}
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				info, err := state.Inspect(f, state.FeatureLevel)
				if err != nil {
					return fmt.Errorf("%s: %w", args[0], err)
				}
				if *asJSON {
					return printJSON(p.stdout, info)
				}
				out := newFields(p.stdout)
				out.set("Version", info.Version)
				out.set("Feature level", info.FeatureLevel)
				out.set("Index", info.Index)
				out.set("Size", bytesize.Text(info.Bytes))
				var tables []string
				for name := range info.Rows {
					tables = append(tables, string(name))
				}
				slices.Sort(tables)
				for _, name := range tables {
					out.set("Rows of "+name, info.Rows[state.Table(name)])
				}
				return out.flush()
			}
		},
	}
}
