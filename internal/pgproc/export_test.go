package pgproc

// Messages cuts chunks of a program's output into messages.
func Messages(program string, chunks ...string) []LogRecord {
	var records []LogRecord
	sink := newLogSink(program, func(r LogRecord) { records = append(records, r) })
	for _, chunk := range chunks {
		_, _ = sink.Write([]byte(chunk))
	}
	sink.flush()
	return records
}

// Explain makes one error of a program's exit and its last messages.
var Explain = explain
