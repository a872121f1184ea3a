# One server of the controller: docs/reference/configuration.md has every setting.
# As it is here, it is a cluster of one server that listens on loopback.

data_dir = "/var/lib/remuda/controller"

# Three servers: the same number on each, and the addresses of all.
# bootstrap_expect = 3
# join             = ["10.0.0.1:4751", "10.0.0.2:4751", "10.0.0.3:4751"]

# raft {
#   bind   = "10.0.0.1:4751"
#   secret = ""               # the same on all servers: openssl rand -hex 32
# }

# http {
#   bind = "10.0.0.1:4750"
# }

# tls {
#   ca_file   = "/etc/remuda.d/ca.pem"
#   cert_file = "/etc/remuda.d/server.pem"   # bears the DNS name server.remuda
#   key_file  = "/etc/remuda.d/server-key.pem"
# }

nomad {
  address = "http://127.0.0.1:4646"
  # token = ""
}

consul {
  address = "127.0.0.1:8500"
  # token = ""
}
