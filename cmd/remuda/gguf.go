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
		synopsis: "Write a tiny GGUF model for tests, or check a GGUF file",
		usage:    "[flags] FILE",
		about: `Writes a tiny language model (about 460 KB, llama architecture, random weights) that
Ollama and other llama.cpp based engines load on any CPU. It emits endless lower-case
text and ends only at the request's token limit. The same seed and name give the same
bytes everywhere.

With -check, reads FILE instead and tells what it holds, or why no engine can serve it.`,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			var o gguf.Options
			fs.StringVar(&o.Name, "name", gguf.DefaultName, "model `name` that goes into the file")
			fs.Uint64Var(&o.Seed, "seed", 1, "`seed` of the random weights")
			check := fs.Bool("check", false, "check FILE instead of writing it")
			return func(_ context.Context, args []string) error {
				if len(args) != 1 {
					return usagef("got %d arguments: want one FILE", len(args))
				}
				path := args[0]
				if !*check {
					if err := gguf.Write(path, o); err != nil {
						return err
					}
				}
				info, err := gguf.Inspect(path)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(p.stdout, "%s: GGUF version %d, architecture %s, name %q, %d tensors, %d parameters, context of %d tokens\n",
					path, info.Version, info.Architecture, info.Name, info.Tensors, info.Parameters, info.ContextLength)
				return err
			}
		},
	}
}
