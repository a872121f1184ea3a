package main

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"

	"remuda/controller/api"
)

var modelHistory = apiCommand{
	synopsis: "List the versions of a model",
	about: `Lists the versions of the model, the newest first, with the changes of each. A version is what
"remuda model apply" or "remuda model revert" made of the model. The last six are kept, and those
of which replicas exist. "remuda model file -version N MODEL" prints one.`,
	args: []string{"MODEL"},
	show: func(ctx context.Context, c *apiClient, args []string, q api.QueryOptions) (api.QueryMeta, error) {
		versions, meta, err := c.ModelVersions(ctx, args[0], q)
		if err != nil {
			return meta, err
		}
		return meta, c.print(list(versions), func() error {
			at := now()
			t := c.table("VERSION", "APPLIED", "STATUS", "REPLICAS", "CHANGES")
			for _, v := range versions {
				var changes []string
				for _, change := range v.Changes {
					changes = append(changes, change.Path)
				}
				t.row(v.Number, age(v.Time, at)+" ago", versionStatus(v), v.Replicas, dash(strings.Join(changes, ", ")))
			}
			return t.flush()
		})
	},
}

// versionStatus returns the role of a version in its model.
func versionStatus(v api.Version) string {
	switch {
	case v.Current && v.Stable:
		return "current, stable"
	case v.Current:
		return "current, rolling out"
	case v.Stable:
		return "stable"
	case v.RolledBack != "":
		return "rolled back: " + v.RolledBack
	}
	return "-"
}

var modelRevert = apiCommand{
	synopsis: "Return a model to an earlier version",
	about: `Applies the definition of an earlier version, as a new version: of VERSION, or of the one before
the current version. The number of replicas stays as it is, unless the two model files set
different ones. It watches until the replicas run; -detach returns at once.`,
	args: []string{"MODEL", "[VERSION]"},
	setup: func(fs *flag.FlagSet) runFunc {
		var w watching
		w.declare(fs, "the replicas run")
		return func(ctx context.Context, c *apiClient, args []string) error {
			var request api.RevertRequest
			if len(args) > 1 {
				n, err := strconv.Atoi(args[1])
				if err != nil || n < 1 {
					return usagef("VERSION is %q: must be the number of a version, see \"remuda model history %s\"", args[1], args[0])
				}
				request.Version = n
			}
			reverted, err := c.RevertModel(ctx, args[0], request)
			if err != nil {
				return err
			}
			c.showChanges(api.ApplyResponse{Models: []api.AppliedModel{reverted}})
			if !reverted.Unchanged {
				c.printf("%s: version %d, waiting for %s.\n", reverted.Name, reverted.Version, plural(reverted.Replicas, "replica"))
				if err := w.follow(ctx, c, reverted.Name, settled); err != nil {
					return fmt.Errorf("model %s: %w", reverted.Name, err)
				}
			}
			return c.print(reverted, func() error { return nil })
		}
	},
}
