package main

import (
	"context"
	"encoding/json"
	"flag"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"

	deviceplugin "remuda/device-plugin"
	"remuda/device-plugin/doctor"
	"remuda/internal/version"
)

// pluginDirs are the usual directories of Nomad's plugins, tried if Nomad does not report its own.
var pluginDirs = []string{"/opt/nomad/plugins", "/opt/nomad/data/plugins", "/var/lib/nomad/plugins", "/usr/lib/nomad/plugins"}

// doctorTimeout bounds the whole examination.
const doctorTimeout = 2 * time.Minute

func (p *program) deviceDoctorVerb() verb {
	return verb{
		synopsis: "Diagnose the GPUs of a node",
		usage:    "[flags]",
		about: `Checks everything between a GPU and a Nomad task on this node: the PCI bus, the driver with
its device files and library, NVML as the installed plugin sees it, the plugin's file and
name, the seats that Nomad offers, and the sockets of the GPU memory service. For each check
it prints the result and what to do. It changes nothing.

Run it on the node, as the user that Nomad runs as. The exit code is 1 if there is a problem.`,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			nomad := nomadapi.DefaultConfig()
			var asJSON bool
			var pluginDir string
			cfg := doctor.Config{Version: version.String()}
			fs.StringVar(&pluginDir, "plugin-dir", "", "Nomad's plugin_dir, if Nomad does not report it (default: the usual places)")
			fs.StringVar(&cfg.Library, "nvml-library", "", "`path` of NVML, as nvml_library in the plugin's configuration (default: from there, else found by the linker)")
			fs.StringVar(&cfg.GMSSocketDir, "gms-socket-dir", "", "`directory` of the GPU memory service's sockets (default: from the plugin's configuration, else "+deviceplugin.DefaultGMSSocketDir+")")
			fs.StringVar(&nomad.Address, "nomad", nomad.Address, "`address` of this node's Nomad agent")
			fs.BoolVar(&asJSON, "json", false, "print JSON")
			return func(ctx context.Context, args []string) error {
				if err := noArgs(args); err != nil {
					return err
				}
				cfg.PluginDirs = pluginDirs
				if pluginDir != "" {
					cfg.PluginDirs = []string{pluginDir}
				}
				cfg.Nomad = doctor.AskNomad(nomad)
				ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
				defer cancel()
				findings := doctor.Run(ctx, cfg)
				var err error
				if asJSON {
					err = json.NewEncoder(p.stdout).Encode(findings)
				} else {
					err = doctor.Print(p.stdout, findings)
				}
				if err == nil && !doctor.Sound(findings) {
					return exitError{exitFailed}
				}
				return err
			}
		},
	}
}
