// Package responses speaks OpenAI's Responses API: it reads requests, writes answers and
// the events of streams, and keeps answers for later requests.
//
// It guarantees the names and the order of OpenAI's events, with sequence numbers from 0
// without a gap, and that a response's object is the same in the stream's last event, in
// the answer that is not streamed, and when it is read again.
package responses
