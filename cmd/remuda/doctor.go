package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	consulapi "github.com/hashicorp/consul/api"
	nomadapi "github.com/hashicorp/nomad/api"

	"remuda/device-plugin/doctor"
	"remuda/internal/checkup"
	"remuda/internal/version"
)

func (p *program) doctorVerb() verb {
	return p.apiVerb(apiCommand{
		synopsis: "Check an installation step by step, and say what comes next",
		about: `Checks Nomad and Consul (versions, the rights of NOMAD_TOKEN and CONSUL_HTTP_TOKEN by trying them),
the nodes' GPUs with lockd and the GPU memory service, the controller's servers, gateways and
models, certificates, clocks and ports, in the order of docs/install.md, and prints what to do
next. It changes nothing, and may be run at any time on any machine. The exit code is 1 if there is
a problem. On a node with GPUs, "remuda device doctor" looks closer.`,
		setup: func(fs *flag.FlagSet) runFunc {
			nomad, consul := nomadapi.DefaultConfig(), consulapi.DefaultConfig()
			fs.StringVar(&nomad.Address, "nomad", nomad.Address, "`address` of a Nomad agent")
			fs.StringVar(&consul.Address, "consul", consul.Address, "`address` of a Consul agent")
			gateway := fs.String("gateway", os.Getenv(envGateway), "`URL` of a gateway for clients (default: $"+envGateway+")")
			return func(ctx context.Context, c *apiClient, _ []string) error {
				ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
				defer cancel()
				findings := checkup.Run(ctx, checkup.Config{
					Nomad: nomad, Consul: consul, Controllers: c.Addresses(), Client: c.Client, Gateway: *gateway, Version: version.String(), Now: now,
				})
				err := c.print(findings, func() error {
					if err := doctor.Print(c.out, findings); err != nil {
						return err
					}
					if next := checkup.Next(findings); next != "" {
						_, err := fmt.Fprintf(c.out, "\nNext: %s\n", next)
						return err
					}
					return nil
				})
				if err == nil && !doctor.Sound(findings) {
					return exitError{exitFailed}
				}
				return err
			}
		},
	})
}
