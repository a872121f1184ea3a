package main

import (
	"context"
	"flag"
	"fmt"

	"remuda/internal/sim/gguf"
)

// simGGUFVerb is "remuda sim gguf".
func (p *program) simGGUFVerb() verb {
	return verb{
		synopsis: "Write a tiny GGUF model for tests",
		usage:    "[flags] FILE",
		about: `Writes a tiny language model (about 460 KB, llama architecture, random weights) that Ollama
and other engines based on llama.cpp load on any CPU. It generates lower-case text and stops
only at the request's token limit. The same seed and name give the same bytes everywhere.`,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			var o gguf.Options
			fs.StringVar(&o.Name, "name", gguf.DefaultName, "model `name` that goes into the file")
			fs.Uint64Var(&o.Seed, "seed", 1, "`seed` of the random weights")
			return func(_ context.Context, args []string) error {
				if len(args) != 1 {
					return usagef("expected one FILE, got %d arguments", len(args))
				}
				path := args[0]
				if err := ownDir(path); err != nil {
					return err
				}
				if err := gguf.Write(path, o); err != nil {
					return err
				}
				_, err := fmt.Fprintf(p.stdout, "%s: written, a model of the llama architecture, seed %d\n", path, o.Seed)
				return err
			}
		},
	}
}
