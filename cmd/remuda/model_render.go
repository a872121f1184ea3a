package main

import (
	"context"
	"flag"
	"fmt"
	"strings"

	"remuda/controller/modelfile"
	"remuda/jobs"
)

func (p *program) modelRenderVerb() verb {
	return verb{
		synopsis: "Print the Nomad job file of a model file",
		usage:    "FILE [flags]",
		args:     []string{"FILE"},
		about: `Prints the Nomad job file of a variant in a model file, with the values of "vars" as the defaults
of its variables. It needs no controller. If a job file that comes with remuda is not enough, save
it, change it, and name it in the variant: job = "mine.nomad.hcl".`,
		anywhere: true,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			variant := fs.String("variant", "", "the `variant`, as NAME, or as MODEL/NAME if the file has several models")
			return func(_ context.Context, args []string) error {
				if err := checkArgs([]string{"FILE"}, args); err != nil {
					return err
				}
				_, models, err := modelfile.Load(jobs.Files, args[0])
				if err != nil {
					return err
				}
				var names, texts []string
				for _, m := range models {
					for _, v := range m.Variants {
						name := m.Name + "/" + v.Name
						names = append(names, name)
						if *variant != "" && *variant != v.Name && *variant != name {
							continue
						}
						text, err := modelfile.RenderJob(v)
						if err != nil {
							return fmt.Errorf("variant %s: %w", name, err)
						}
						texts = append(texts, text)
					}
				}
				if len(texts) != 1 {
					return usagef("-variant is %q: must be one of %s", *variant, strings.Join(names, ", "))
				}
				_, err = fmt.Fprint(p.stdout, texts[0])
				return err
			}
		},
	}
}
