// Package api is the controller's HTTP API as its clients see it: the JSON of every
// route, and a Go client with one method for each. The CLI, the gateway and the
// autoscaler's target use it; the server answers with the same types.
//
// Names of JSON fields are those of the Go fields. A field that is new in a later
// version is ignored by older clients, and refused by older servers by its name, so
// that nothing that was asked for is silently left out.
//
// The OpenAPI document is generated from the types, their comments and their tags: a field
// without omitempty or omitzero is required, min, max and maxLength bound its values, and
// enum lists them, by a type whose constants they are or as words.
//
// It guarantees: a call that changes something is sent once; only where no connection
// could be made is another server asked. A read may be sent to the next server after
// any failure of the network.
package api
