package main

import (
	"context"
	"flag"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"remuda/device-plugin/gms/keeper"
)

func (p *program) gmsKeeperVerb() verb {
	return verb{
		synopsis: "Keep committed GPU memory while the GPU memory service restarts",
		usage:    "-socket PATH [flags]",
		about: `Holds a descriptor of every committed allocation, so that a crash of 'remuda gms' loses no
weights: the next one takes them back. Run it as a separate task beside 'remuda gms -keeper
PATH', as the same user. If the keeper dies, a 'remuda gms' that still runs hands everything
over to the next keeper.`,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			cfg := keeper.DefaultConfig()
			var logLevel, metricsAddr string
			fs.StringVar(&cfg.Socket, "socket", "", "`path` of the Unix socket (required)")
			fs.IntVar(&cfg.Limits.Descriptors, "max-descriptors", cfg.Limits.Descriptors, "maximum number of descriptors, one for each allocation (default: the open-file limit of the process)")
			fs.Uint64Var(&cfg.Limits.Bytes, "max-bytes", cfg.Limits.Bytes, "maximum `bytes` of layouts and metadata")
			fs.StringVar(&metricsAddr, "metrics", "", "`address` for GET /metrics (default: none)")
			logLevelFlag(fs, &logLevel)
			return func(ctx context.Context, args []string) error {
				if err := noArgs(args); err != nil {
					return err
				}
				var err error
				if cfg.Logger, err = p.logger("gms-keeper", logLevel); err != nil {
					return err
				}
				registry := prometheus.NewRegistry()
				registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
				cfg.Metrics = registry
				k, err := keeper.New(cfg)
				if err != nil {
					return usageError{err.Error()}
				}
				stop, err := serveMetrics(metricsAddr, registry)
				if err != nil {
					return err
				}
				defer stop()
				return k.Run(ctx)
			}
		},
	}
}
