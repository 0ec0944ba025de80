# Writes a schema as a later ExecuTorch may bring it: IN with an op more, and a field more in an op that there is.
#   cmake -DIN=schema.fbs -DOUT=newer/schema.fbs -P newer_schema.cmake
file(READ ${IN} text)
string(REGEX MATCH "union OpNode {[^}]*}" union "${text}")
string(REGEX REPLACE "//[^\n]*" "" newer "${union}")
string(REGEX REPLACE "[ \n,]*}$" ",\n    FutureNode\n}" newer "${newer}")
set(future "table FutureLabel {\n    name: string;\n}\n
table FutureNode {\n    x: Tid (required);\n    out: Tid (required);\n    labels: [FutureLabel];\n}\n\n")
string(REPLACE "${union}" "${future}${newer}" text "${text}")
string(REGEX REPLACE "(table SdpaNode {[^}]*)}" "\\1    window: int32 = 0;\n}" text "${text}")
foreach(word ",[ \n]*FutureNode\n}" "window: int32 = 0")
  if(NOT text MATCHES "${word}")
    message(FATAL_ERROR "${IN} is not written as this script expects")
  endif()
endforeach()
file(WRITE ${OUT} "${text}")
