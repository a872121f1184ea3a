package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"

	"remuda/internal/version"
)

// verbs lists every subcommand by its name.
func (p *program) verbs() map[string]verb {
	all := map[string]verb{
		"agent":            p.agentVerb(),
		"agent health":     p.apiVerb(agentHealth),
		"agent info":       p.apiVerb(agentInfo),
		"capacity explain": p.capacityExplainVerb(),
		"chat":             p.chatVerb(),
		"decision list":    p.apiVerb(decisionList),
		"dev":              p.devVerb(),
		"device doctor":    p.deviceDoctorVerb(),
		"doctor":           p.doctorVerb(),
		"engine":           p.engineVerb(),
		"evict":            p.apiVerb(evict),
		"failover":         p.apiVerb(failover),
		"gateway":          p.gatewayVerb(),
		"gms":              p.gmsVerb(),
		"gms clear":        p.gmsClearVerb(),
		gmsServeVerbName:   p.gmsServeVerb(),
		simWorkerVerbName:  p.simWorkerVerb(),
		"hpa replay":       p.hpaReplayVerb(),
		"lockd":            p.lockdVerb(),
		"lockd status":     p.lockdStatusVerb(),
		"logs":             p.apiVerb(logs),
		"plan":             p.apiVerb(plan),
		"scale":            p.apiVerb(scale),
		"sim":              p.simVerb(),
		"sim gguf":         p.simGGUFVerb(),
		"sim weights":      p.simWeightsVerb(),
		"top":              p.topVerb(),
		"usage":            p.apiVerb(usage),
		"version":          p.versionVerb(),
	}
	for _, nouns := range []map[string]verb{p.aclVerbs(), p.dedicatedVerbs(), p.gatewayVerbs(), p.keyVerbs(), p.modelVerbs(), p.nodeVerbs(), p.pipelineVerbs(), p.poolVerbs(), p.queueVerbs(), p.raftVerbs(), p.replicaVerbs(), p.requestVerbs(), p.snapshotVerbs(), p.switchVerbs()} {
		maps.Copy(all, nouns)
	}
	return all
}

func (p *program) versionVerb() verb {
	return verb{
		synopsis: "Print the version",
		usage:    "[flags]",
		about:    "Prints remuda's version, the commit that was built with its date, and the Go version.",
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			asJSON := fs.Bool("json", false, "print JSON")
			return func(_ context.Context, args []string) error {
				if err := noArgs(args); err != nil {
					return err
				}
				if *asJSON {
					return json.NewEncoder(p.stdout).Encode(version.Read())
				}
				fmt.Fprintln(p.stdout, version.Long())
				return nil
			}
		},
	}
}
