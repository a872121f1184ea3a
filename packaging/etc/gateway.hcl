# A gateway: docs/reference/configuration.md has every setting.

listen = "127.0.0.1:8080" # "0.0.0.0:8080" for clients on other machines

# operator_listen = "10.0.0.1:4752"   # metrics

# tls {
#   cert = "/etc/remuda.d/gateway.pem"
#   key  = "/etc/remuda.d/gateway-key.pem"
# }

consul {
  address = "127.0.0.1:8500"
  # token = ""
}

controller {
  addresses = ["http://127.0.0.1:4750"]
  # token   = ""   # remuda acl token create -role gateway -name gateways
}
