package main

// install is what people see who run the plugin by hand.
const install = `remuda-device is a Nomad device plugin: Nomad starts it, it cannot be run by hand.

To install it:
  1. Put this file into the plugin_dir of every Nomad client that has GPUs, under
     the name "remuda-device" (Nomad finds its configuration by the file name):
         install -D -m 0755 remuda-device /opt/nomad/plugins/remuda-device
  2. Name the directory and the plugin in the agent's configuration:
         plugin_dir = "/opt/nomad/plugins"
         plugin "remuda-device" {
           config {
             seats = 2
             # simulate {        # instead of the node's own GPUs
             #   model = "H100"
             #   count = 2
             # }
           }
         }
  3. Restart the Nomad agent and look:
         nomad node status -self -verbose
     If the GPUs are missing: remuda device doctor

Flags:
  -version   print the version and exit
`
